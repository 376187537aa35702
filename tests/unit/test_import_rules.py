"""Which module may import which, by the source and by what a fresh interpreter has loaded; rules for each file."""

import ast
import functools
import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FRAMEWORKS = {"theano", "pygpu", "keras", "blocks", "fuel", "lasagne", "torch", "tensorflow", "mpi4py"}
BASE = Path(importlib.util.find_spec("platoon_base").origin).parent
PLUGINS = BASE.parent / "platoon_plugins"
THIS = Path(__file__)

# What decides, against what does: sockets, shared memory, processes, frameworks.
PURE = [
    "rules.center",
    "rules.forms",
    *(f"coordination.{path.stem}" for path in sorted((BASE / "coordination").glob("[a-z]*.py"))),
    "layout",
    "learning_rate",
    "schedule",
    "sharding",
    "metrics",
    "errors",
    "fingerprint",
    "hosts",
]
IMPURE = {"zmq", "posix_ipc", "mmap", "fcntl", "socket", "subprocess", "threading", "multiprocessing", "psutil"}
IMPURE_OF_OURS = {
    f"platoon_base.{name}"
    for name in ("shm", "job", "centers", "channels", "controller", "worker", "system.folder_lock", "system.own_files")
}
BACK_ENDS = {
    f"platoon_base.{name}"
    for name in (
        "centers.host",
        "centers.device",
        "centers.gossip",
        "channels.zmq",
        "channels.inproc",
        "collectives.host",
        "collectives.hosts",
        "collectives.gpu_arrays",
        "collectives.staged",
        "collectives.tensors",
    )
}

# The files that talk to devices by pygpu; nothing imports them unless there are some.
ABOUT_DEVICES = {
    "devices/pygpu_runtime.py",
    "collectives/flat_device.py",
    "collectives/gpu_arrays.py",
    "theano_ops/gpu.py",
}

# The files that call CUDA's driver; the last two ask it before anything has initialized it.
CALLS_DRIVER = {"devices/cuda.py", "devices/discovery.py", "devices/isolation.py"}

# What is about torch's tensors; imported once there are some.
ABOUT_TENSORS = ("collectives/tensors.py", "torch_arrays.py", "torch_loops/")

# What is about Theano; in all but the first it is imported inside functions, once the script has it.
ABOUT_THEANO = ("theano_ops/", "platoon_api/", "compat/", "worker_process/forkserver_main.py")


@pytest.fixture
def nothing_left_behind():
    """Nothing here starts what could stay behind, and the search for it takes longer than most of these tests."""


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path):
    return list(ast.walk(tree_of(path)))


def sources(folder):
    return sorted(folder.rglob("*.py"))


def module_name(path):
    parts = path.relative_to(BASE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(path):
    """Name every module that a file imports, wherever in the file; ``from a import b`` gives a and a.b."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return found


def within(names, packages):
    """Keep the names that are one of the packages or lie inside one."""
    return {name for name in names if any(name == p or name.startswith(p + ".") for p in packages)}


def loaded_by(statement):
    """List what a fresh interpreter has loaded after a statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(json.loads(run.stdout.splitlines()[-1]))


NEED_A_FRAMEWORK = {
    "platoon_base.jax_arrays",
    "platoon_base.theano_ops",
    "platoon_base.torch_arrays",
    "platoon_base.torch_loops",
}


def is_module(name):
    """Return whether a name is a module or package below platoon_base, and not, say, a function."""
    path = BASE.joinpath(*name.split(".")[1:])
    return path != BASE and (path.with_suffix(".py").exists() or path.is_dir())


def test_the_contracts_of_import_linter_hold():
    """They are in pyproject.toml: the order of the packages, and what the adapters see of the base."""
    pytest.importorskip("importlinter", reason="needs import-linter: `make setup` installs it")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=BASE.parent, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.base
def test_neither_the_base_nor_the_command_line_load_a_framework():
    names = ["platoon_base.job", "platoon_base.compat", "platoon_base.cli.launcher", "platoon_base.cli.commands.doctor"]
    names.append("platoon_base.worker_process.forkserver_main")
    assert within(loaded_by(f"import {', '.join(names)}"), FRAMEWORKS) == set()


@pytest.mark.base
def test_a_worker_loads_nothing_that_hosts_a_job():
    assert within(loaded_by("import platoon_base"), {"platoon_base.controller", "platoon_base.job.hosting"}) == set()


@pytest.mark.base
def test_modules_that_decide_load_no_back_end():
    """The package's own __init__ loads the worker and with it sockets; the files alone must not."""
    statement = f"""
import importlib, types
package = types.ModuleType("platoon_base")
package.__path__ = [{str(BASE)!r}]
sys.modules["platoon_base"] = package
for name in {PURE}:
    importlib.import_module("platoon_base." + name)
"""
    loaded = loaded_by(statement)
    assert {f"platoon_base.{module}" for module in PURE} <= loaded
    assert within(loaded, IMPURE_OF_OURS | {"zmq", "posix_ipc"} | FRAMEWORKS) == set()


@pytest.mark.base
def test_public_packages_have_all_that_they_offer():
    """Some names are imported only when they are asked for, so a wrong one would show late."""
    used = set().union(*(imports(path) for path in sources(PLUGINS)))
    public = {name for name in within(used, {"platoon_base"}) if is_module(name)} | {"platoon_base"}
    code = f"""
import importlib
modules = [importlib.import_module(name) for name in {sorted(public - NEED_A_FRAMEWORK)}]
missing = [(module, name) for module in modules for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
assert not missing, missing
"""
    loaded_by(code)


def is_of_ours(name):
    return name.partition(".")[0] in ("platoon_base", "platoon_plugins")


@functools.cache
def offered_by(module):
    """Read from the source what a module of ours binds outside functions and classes, lazy names and modules too."""
    path = BASE.parent.joinpath(*module.split("."))
    names = {each.stem for each in path.glob("*")}
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists():
        return set()
    lazy = "__getattr__" in path.read_text()
    pending = list(tree_of(path).body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif lazy and isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(node.value.split())
        pending += ast.iter_child_nodes(node)
    return names


def names_used(path):
    """List the modules of ours and the names that a file takes from them, wherever in the file."""
    used, modules = [], {}
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            used += [(alias.name, "*") for alias in node.names]
            modules |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            used += [(node.module, alias.name) for alias in node.names]
            both = [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
            modules |= {name: module for name, module in both if is_of_ours(module) and offered_by(module)}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy_names":
            homes = zip(node.args[1].keys, node.args[1].values)
            constants = [(home.value, names.value) for home, names in homes if isinstance(names, ast.Constant)]
            used += [(home, name) for home, names in constants for name in names.split()]
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in modules:
            used.append((modules[node.value.id], node.attr))
    return [(module, name) for module, name in used if is_of_ours(module)]


@pytest.mark.parametrize("folder", ["platoon_base", "platoon_plugins", "tests", "benchmarks", "examples", "docs"])
def test_each_name_taken_from_a_module_of_ours_is_in_it(folder):
    """Type checks leave the adapters out, and an import inside a function fails only when its line runs."""
    used = {path: names_used(path) for path in sources(BASE.parent / folder) if "platoon_" in path.read_text()}
    missing = [
        (str(path.relative_to(BASE.parent)), module, name)
        for path, pairs in used.items()
        for module, name in pairs
        if not offered_by(module) or (name not in offered_by(module) and name != "*" and name[:2] != "__")
    ]
    assert missing == []


# Rules for each file: a function lists what breaks the rule in one file.

# What adapters register. Docstrings may name a framework as an example, what runs may not.
OF_ADAPTERS = re.compile(r"(?i:\b(?:keras|lasagne|fuel|jax|tensorflow)\b)|\bBlocks\b|\Ablocks\b(?! )|platoon_plugins\.")


def names_of_adapters(path):
    """List the texts of a module that name an adapter or its framework, docstrings apart, and such imports."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in nodes_of(path) if isinstance(node, holders)]
    prose = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            prose |= {id(each) for each in ast.walk(node)}  # names of its own
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found.append(node.value)
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    own = re.compile("(?i:jax)") if place_of(path).startswith(("array_loops/", "jax_arrays/")) else re.compile("$^")
    return [text for text in found if OF_ADAPTERS.search(own.sub("", text))]


def impure_imports(path):
    return within(imports(path), IMPURE | IMPURE_OF_OURS | FRAMEWORKS)


def place_of(path):
    return path.relative_to(BASE).as_posix() if BASE in path.parents else path.relative_to(PLUGINS).as_posix()


def foreign_frameworks(path):
    place = place_of(path)
    allowed = {"theano"} if place.startswith(ABOUT_THEANO) else set()
    if place in ABOUT_DEVICES:
        allowed.add("pygpu")
    if place.startswith(ABOUT_TENSORS):
        allowed.add("torch")
    return within(imports(path), FRAMEWORKS) - within(imports(path), allowed)


def chosen_back_ends(path):
    """List the back ends that a file imports, but for the file that chooses them for all jobs."""
    of_ours = {
        "courier/process.py": {"platoon_base.centers.host"},  # a process of its own
        "collectives/hosts.py": {"platoon_base.collectives.host"},  # which is the one of a host, and more
        "collectives/tensors.py": {"platoon_base.collectives.staged"},  # tensors go the same way
        "job/backends.py": BACK_ENDS,
    }
    found = within(imports(path), BACK_ENDS)
    return found - within(found, of_ours.get(place_of(path), set()))


def misplaced_driver_calls(path):
    """List the functions of CUDA's driver and of NCCL that a file names, unless it is the place for them."""
    text, place = path.read_text(), place_of(path)
    pattern = re.compile(
        r"\b(?:cu(?:Ctx|Device|Event|Init|Ipc|Launch|Mem|Module|Stream)|nccl(?:Comm|Get|All|Re|Br))\w*"
    )
    found = pattern.findall(ast.unparse(tree_of(path))) if pattern.search(text) else []  # comments may name them
    driver, nccl = ([name for name in found if name.startswith(prefix)] for prefix in ("cu", "nccl"))
    return (driver if place not in CALLS_DRIVER else []) + (nccl if place != "devices/nccl.py" else [])


def memory_of_python_objects(path):
    """List the lines that read at an address that ``id`` returns: CPython's own memory, which nobody may look into."""
    calls = [node for node in nodes_of(path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    at = [call for call in calls if call.func.attr in ("from_address", "string_at")]
    return [call.lineno for call in at if re.search(r"\bid\(", ast.unparse(call))]


USE_SEGMENTS = {f"job/{name}.py" for name in ("attaching", "hosting", "backends", "files")}
USE_SEGMENTS |= {f"cli/commands/{name}.py" for name in ("doctor", "env")}
USE_SEGMENTS |= {f"centers/{name}.py" for name in ("base", "host", "stripes", "gossip", "device")}
USE_SEGMENTS |= {"centers/device_directory.py"}
USE_SEGMENTS |= {"collectives/host_exchange.py", "multihost/mirror.py", "shm/schema.py"}
USE_SEGMENTS |= {"data/shared_data_memory.py", "data/shared_data.py"}
USE_SEGMENTS |= {"collectives/host.py", "collectives/hosts.py", "courier/process.py"}  # for their names alone
PLACES = {
    "zmq": {"channels/zmq.py"},
    "posix_ipc": {"shm/segments.py"},
    "platoon_base.shm.segments": USE_SEGMENTS,
}


def misplaced_sockets_and_memory(path):
    found = imports(path)
    return [name for name, places in PLACES.items() if within(found, {name}) and place_of(path) not in places]


def back_ends_of_plugins(path):
    return within(imports(path), BACK_ENDS | {"platoon_base.shm.segments", "zmq", "posix_ipc"})


def prints_or_exits(path):
    """List the calls of print() and of sys.exit(), and the raised SystemExit, by line."""
    if path.parent == BASE / "cli" / "commands" or path == BASE / "__main__.py":
        return []
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.exit", "exit", "quit"):
            found.append((node.lineno, ast.unparse(node.func)))
        elif isinstance(node, ast.Raise) and node.exc is not None and "SystemExit" in ast.unparse(node.exc):
            found.append((node.lineno, "SystemExit"))
    return found


def asserts(path):
    """List the lines of assert statements, which vanish under ``python -O``."""
    return [node.lineno for node in nodes_of(path) if isinstance(node, ast.Assert)]


def arrays_made_elsewhere(path):
    """List arrays made by numpy.ndarray or from an address: they do not keep shared memory mapped, see array_on."""
    calls = [node.func for node in nodes_of(path) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call, ast.Attribute) and call.attr in ("ndarray", "as_array")]
    return [call.lineno for call in made if path.name != "layout.py"]


LONGEST_FILE, LONGEST_FUNCTION = 600, 60


def lines_of(function):
    """Count the lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    return body[-1].end_lineno - body[0].lineno + 1


def long_parts(path):
    found = [node for node in nodes_of(path) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    parts = [function.name for function in found if lines_of(function) > LONGEST_FUNCTION]
    return parts + ["the file"] * (len(path.read_text().splitlines()) > LONGEST_FILE)


MOST_METHODS, MOST_PARAMETERS = 25, 8
WIDER_CLASSES = {
    "platoon_base.worker.handle.Worker": 33,  # the contract with scripts: what the guides show
    "platoon_base.devices.cuda.Driver": 30,  # one method for each of the driver's calls
    "platoon_base.collectives.hosts_exchange.HostsExchange": 32,  # the steps of all calls, which share one state
}


def methods_of(node):
    """Return the names of a class's methods and properties, without those with two underscores at both ends."""
    found = {each.name for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return {name for name in found if not (name.startswith("__") and name.endswith("__"))}


def parameters_of(node):
    """Return the parameters of a class's constructor, without ``self``."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            names = [*each.args.posonlyargs, *each.args.args, each.args.vararg, *each.args.kwonlyargs, each.args.kwarg]
            return [name.arg for name in names if name is not None][1:]
    return []


def wide_classes(path):
    classes = [node for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    most = {node: WIDER_CLASSES.get(f"{module_name(path)}.{node.name}", MOST_METHODS) for node in classes}
    wide = [node for node in classes if len(methods_of(node)) > most[node]]
    return [node.name for node in wide + [c for c in classes if len(parameters_of(c)) > MOST_PARAMETERS]]


PURE_FILES = [BASE / f"{name.replace('.', '/')}.py" for name in PURE]
BOTH = (BASE, PLUGINS)


@pytest.mark.parametrize(
    ("rule", "where"),
    [
        (impure_imports, PURE_FILES),
        (names_of_adapters, (BASE,)),
        (foreign_frameworks, (BASE,)),
        (chosen_back_ends, (BASE,)),
        (misplaced_driver_calls, BOTH),
        (memory_of_python_objects, BOTH),
        (misplaced_sockets_and_memory, (BASE,)),
        (back_ends_of_plugins, (PLUGINS,)),
        (prints_or_exits, BOTH),
        (asserts, BOTH),
        (arrays_made_elsewhere, (BASE,)),
        (long_parts, BOTH),
        (wide_classes, BOTH),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_file_follows(rule, where):
    files = [path for place in where for path in ([place] if place.is_file() else sources(place))]
    assert len(files) > 10
    found = {module_name(path): rule(path) for path in files}
    assert {name: offenders for name, offenders in found.items() if offenders} == {}


# How tests and benchmarks are written.

# Private names of others than this project, which tests cannot do without: of Python, Blocks and Keras.
PRIVATE_OF_OTHERS = {"_exit", "_is_protocol", "_replace", "_asdict", "_fields", "_make"}
PRIVATE_OF_OTHERS |= {"threading._shutdown", "atexit._run_exitfuncs"}
PRIVATE_OF_OTHERS |= {"algorithm._function", "_build_aggregator", "_learning_rate", "_make_train_function"}
PRIVATE_OF_OTHERS |= {"_shutdown", "_run_exitfuncs"}
PRIVATE_ATTRIBUTE = re.compile(r"(?:\w+|\)|\])\._[A-Za-z]\w*")
PRIVATE_BY_NAME = re.compile(r"(?:attr|patch|object)\([^()\"']*[\"'](?:[\w.]*\.)?(_[A-Za-z]\w*)[\"']")
PRIVATE_OF_A_WORKER = re.compile(r"(?:\w*worker\w*|\bjob_of_one|\bconnect\(\))\._\w+")
IMPORTED_FROM_OURS = re.compile(r"from\s+platoon_[\w.]+\s+import\s+(\([^)]*\)|[^\n;]*)")


def private_names(text):
    """List the private names that Python code uses, scripts in its strings included, but for those of ``self``."""
    found = [name for name in PRIVATE_ATTRIBUTE.findall(text) if not name.startswith(("self._", "cls._"))]
    found += PRIVATE_BY_NAME.findall(text)
    found += [name for names in IMPORTED_FROM_OURS.findall(text) for name in re.findall(r"\b_[A-Za-z]\w*", names)]
    return [name for name in found if not {name, name.rpartition(".")[2]} & PRIVATE_OF_OTHERS]


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples", "platoon_plugins"])
def test_the_library_is_used_by_its_public_names(folder):
    """A worker has no others even for the plugins: what a test sees beyond them is in tests/helpers/watching.py."""
    files = [path for path in sources(BASE.parent / folder) if path != THIS]
    assert len(files) > 4
    used = {path.name: PRIVATE_OF_A_WORKER.findall(path.read_text()) for path in files}
    if folder != "platoon_plugins":
        used = {path.name: used[path.name] + private_names(path.read_text()) for path in files}
    assert {name: names for name, names in used.items() if names} == {}


def test_what_the_tests_share_has_names_of_its_own():
    """Their folder is on the path of workers, where a name found elsewhere as well would hide one of the two."""
    here = Path(__file__).parents[1] / "helpers"
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != here]
    names = [path.stem for path in here.glob("*.py")]
    assert "watching" in names
    assert [name for name in names if importlib.machinery.PathFinder.find_spec(name, elsewhere)] == []
