"""The adapters are siblings: the same file for the same role, and the same arguments for the same idea.

Files and signatures are read from the source, so no framework is needed.
"""

import ast
import importlib.util
from pathlib import Path

import pytest

pytestmark = [pytest.mark.base, pytest.mark.promise]

PLUGINS = Path(importlib.util.find_spec("platoon_plugins").origin).parent
ADAPTERS = ("blocks", "keras", "lasagne")

# The file of each role, with what a user calls there.
ROLES = {
    "sync": {"blocks": {"ParameterSync"}, "keras": {"distribute"}, "lasagne": {"sync_updates"}},
    "gradients": {"blocks": {"AllReduceGradients"}, "keras": {"DistributedOptimizer"}, "lasagne": {"all_reduce_grads"}},
    "data": {"blocks": {"shard_stream"}, "keras": {"shard"}, "lasagne": {"iterate_minibatches", "shard"}},
    "evaluation": {
        "blocks": {"DistributedMonitoring", "DistributedTrainingMonitoring"},
        "keras": set(),  # `fit` evaluates
        "lasagne": {"evaluate"},
    },
    "stopping": {"blocks": {"StopTogether"}, "keras": set(), "lasagne": {"StopOnPatience"}},  # callbacks of Keras stop
    "learning_rate": {name: {"LearningRateWarmup", "scale_learning_rate", "scale_schedule"} for name in ADAPTERS},
    "training": {"blocks": set(), "keras": set(), "lasagne": {"finish_training"}},
}

# Arguments that mean the same in all adapters, in their order, with the default that they have wherever they have one.
DEFAULTS = {
    "rule": "'auto'",
    "every_n_batches": "None",
    "warmup_epochs": "5",
    "steps_per_epoch": None,
    "skip": "0",
    "how": "'linear'",
    "policy": "'any'",
    "leader_only": None,
    "uneven": "'keep'",
    "average": "None",
    "on_nonfinite": "'raise'",
    "statistics": "()",
    "timeout_s": "DEFAULT_TIMEOUT_S",
    "worker": "None",
}
ORDER = list(DEFAULTS)
BY_KEYWORD = set(ORDER) - {"rule", "every_n_batches", "warmup_epochs", "steps_per_epoch", "skip"}
LAST = ("timeout_s", "worker")
OTHER_WORDS = {
    "sync": "rule",
    "every_n_updates": "every_n_batches",
    "period": "every_n_batches",
    "stop": "policy",
    "batchsize": "batch_size",
    "timeout": "timeout_s",
    "scaling": "how",
    "lr": "learning_rate",
}


def parse(*parts):
    return ast.parse(PLUGINS.joinpath(*parts).read_text())


def homes(adapter):
    """Map the functions and classes that an adapter's package offers to the modules that define them."""
    found = {}
    for node in parse(adapter, "__init__.py").body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith(f"platoon_plugins.{adapter}."):
            found.update((alias.name, node.module.rpartition(".")[2]) for alias in node.names)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):  # of names that are imported when used
            found.update(ast.literal_eval(node.value))
    return {name: home for name, home in found.items() if definition(parse(adapter, f"{home}.py"), name)}


def definition(tree, name):
    """Return the function or class of a module, also one of platoon_base; None if the name is that of a value."""
    for node in tree.body:
        if getattr(node, "name", None) == name:
            return node
        if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
            folder = PLUGINS.parent.joinpath(*node.module.split("."))
            found = [definition(ast.parse(path.read_text()), name) for path in sorted(folder.glob("*.py"))]
            return next(filter(None, found), None)
    return None


def signature(tree, name):
    """Return the arguments of a function, or of a class's ``__init__``; None for a class that has none of its own."""
    node = definition(tree, name)
    if isinstance(node, ast.ClassDef):
        node = next((part for part in node.body if getattr(part, "name", None) == "__init__"), None)
    return node and node.args


def complaints(arguments):
    """List what is unlike the common names, order and defaults in a signature."""
    by_position = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    names = [*by_position, *(argument.arg for argument in arguments.kwonlyargs)]
    first = len(by_position) - len(arguments.defaults)
    defaults = dict(zip(by_position[first:], arguments.defaults))
    defaults.update((argument.arg, value) for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults))
    found = [f"{name} instead of {word}" for name, word in OTHER_WORDS.items() if name in names]
    common = [name for name in names if name in ORDER]
    if common != sorted(common, key=ORDER.index):
        found.append(f"order {', '.join(common)}")
    found += [f"{name} by position" for name in by_position if name in BY_KEYWORD]
    last = [name for name in names if name in LAST]
    if last != names[len(names) - len(last) :]:
        found.append(f"{', '.join(last)} not last")
    for name in common:
        value = defaults.get(name)
        if DEFAULTS[name] is not None and (value is None or ast.unparse(value) != DEFAULTS[name]):
            found.append(f"{name} is {value and ast.unparse(value)}")
    return found


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("role", ROLES)
def test_each_role_has_a_file_of_the_same_name(adapter, role):
    home = homes(adapter)
    found = set() if (PLUGINS / adapter / f"{role}.py").is_file() else {f"no {role}.py"}
    found |= {f"{name} is not in {role}.py" for name in ROLES[role][adapter] if home[name] != role}
    found |= {f"{name} is in {role}.py" for name in home if home[name] == role and name not in ROLES[role][adapter]}
    assert found == set()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_arguments_for_the_same_idea_have_one_name_order_and_default(adapter):
    found = set()
    for name, module in homes(adapter).items():
        arguments = signature(parse(adapter, f"{module}.py"), name)
        if arguments is not None:
            found |= {f"{name}: {complaint}" for complaint in complaints(arguments)}
    assert found == set()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_entry_has_a_rule_and_takes_a_worker(adapter):
    (entry,) = ROLES["sync"][adapter]
    arguments = signature(parse(adapter, f"{homes(adapter)[entry]}.py"), entry)
    names = {argument.arg for argument in [*arguments.args, *arguments.kwonlyargs]}
    lacks = {f"{entry} has no {name}" for name in ("rule", "on_nonfinite", "worker") if name not in names}
    assert lacks == set()


@pytest.mark.parametrize("name", ["scale_learning_rate", "scale_schedule", "LearningRateWarmup"])
def test_the_learning_rate_takes_the_same_in_all_adapters(name):
    """A warm-up gets a variable in Lasagne and Blocks, and a number in Keras; `skip` is for loops of one's own."""
    found = set()
    for adapter in ADAPTERS:
        arguments = signature(parse(adapter, "learning_rate.py"), name)
        names = [argument.arg for argument in [*arguments.args, *arguments.kwonlyargs] if argument.arg != "self"]
        by_adapter = {"initial_lr": "learning_rate"}
        found.add(tuple(by_adapter.get(word, word) for word in names if word != "skip"))
    assert len(found) == 1


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_adapter_offers_the_place_of_a_worker_and_the_default_rules(adapter):
    tree = ast.parse((PLUGINS / adapter / "__init__.py").read_text())
    (offered,) = [
        {part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert {"rank", "world_size", "is_main", "AveragedEASGD", "CenterMomentum"} <= offered


def test_prepare_has_the_same_words_in_all_adapters():
    common = ("mode", "strategy", "sync_every", "policy", "worker")
    for adapter in ADAPTERS:
        arguments = signature(parse(adapter, "prepared.py"), "prepare")
        by_position = [argument.arg for argument in arguments.args]
        names = [*by_position, *(argument.arg for argument in arguments.kwonlyargs)]
        found = [name for name in names if name in common]
        assert found == [name for name in common if name in found]
        assert {"mode", "strategy", "sync_every", "worker"} <= set(found)
        defaults = [*arguments.defaults, *arguments.kw_defaults]
        values = dict(zip(names[len(names) - len(defaults) :], map(ast.unparse, defaults)))
        assert {values[name] for name in ("mode", "strategy", "sync_every", "worker")} == {"None"}
