"""Who may import whom: told by the source, and by what a fresh interpreter has loaded."""

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
    "hosts.place",
    "hosts.world",
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
# Devices' back ends are imported by name, once there are devices.
ALWAYS_CHOSEN = {name for name in BACK_ENDS if not name.endswith((".device", ".gpu_arrays", ".staged", ".tensors"))}

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


def sources(folder):
    return sorted(folder.rglob("*.py"))


def module_name(path):
    parts = path.relative_to(BASE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """Name every module that a file imports, wherever in the file; ``from a import b`` gives a and a.b."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in ast.walk(tree_of(path)):
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


def test_the_readers_of_imports_see_all_forms(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "BASE", tmp_path / "pkg")
    path = tmp_path / "pkg" / "sub" / "file.py"
    path.parent.mkdir(parents=True)
    path.write_text("import a.b, c\nfrom d import e\ndef f():\n    from . import g\n    from ..h import i\n")
    assert imports(path) == {"a.b", "c", "d", "d.e", "pkg.sub", "pkg.sub.g", "pkg.h", "pkg.h.i"}
    assert within({"zmq.utils", "zmqx", "zmq"}, {"zmq"}) == {"zmq.utils", "zmq"}
    assert len(sources(PLUGINS)) > 0


def known(name):
    """Return whether a name is a module or package below platoon_base, and not, say, a function."""
    path = BASE.joinpath(*name.split(".")[1:])
    return path != BASE and (path.with_suffix(".py").exists() or path.is_dir())


def test_the_contracts_of_import_linter_hold():
    """They are in pyproject.toml: the order of the packages, and what the adapters see of the base."""
    pytest.importorskip("importlinter", reason="needs import-linter: `make setup` installs it")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=BASE.parent, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("package", [path.parent for path in sources(BASE) if path.name == "__init__.py"], ids=str)
def test_every_room_says_what_it_is_for(package):
    text = ast.get_docstring(tree_of(package / "__init__.py"))
    assert text is not None
    assert text.rstrip().endswith(".")


@pytest.mark.base
@pytest.mark.parametrize("statement", ["import platoon_base", "import platoon_base.job", "import platoon_base.compat"])
def test_the_base_loads_no_framework(statement):
    assert within(loaded_by(statement), FRAMEWORKS) == set()


@pytest.mark.base
def test_a_worker_loads_nothing_that_hosts_a_job():
    assert within(loaded_by("import platoon_base"), {"platoon_base.controller", "platoon_base.job.hosting"}) == set()


@pytest.mark.base
def test_the_command_line_loads_no_framework():
    loaded = loaded_by(
        "import platoon_base.cli.launcher, platoon_base.worker_process.forkserver_main, platoon_base.cli.doctor"
    )
    assert within(loaded, FRAMEWORKS) == set()


@pytest.mark.base
@pytest.mark.parametrize("module", PURE)
def test_what_decides_can_be_imported_by_itself(module):
    """The package's own __init__ loads the worker and with it sockets; the file alone must not."""
    statement = f"""
import sys, types
package = types.ModuleType("platoon_base")
package.__path__ = [{str(BASE)!r}]
sys.modules["platoon_base"] = package
import platoon_base.{module}
"""
    loaded = loaded_by(statement)
    assert f"platoon_base.{module}" in loaded
    assert within(loaded, IMPURE_OF_OURS | {"zmq", "posix_ipc"} | FRAMEWORKS) == set()


@pytest.mark.parametrize("module", PURE)
def test_what_decides_imports_no_back_end(module):
    assert within(imports(BASE / f"{module.replace('.', '/')}.py"), IMPURE | IMPURE_OF_OURS | FRAMEWORKS) == set()


# What adapters register. Docstrings may name a framework as an example, what runs may not.
OF_ADAPTERS = re.compile(r"(?i:\b(?:keras|lasagne|fuel|jax|tensorflow)\b)|\bBlocks\b|\Ablocks\b(?! )|platoon_plugins\.")


def names_of_adapters(tree):
    """List the texts of a module that name an adapter or its framework, docstrings apart, and such imports."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, holders)]
    prose = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    faces = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node).startswith("__all__")
    ]
    prose |= {id(node) for face in faces for node in ast.walk(face)}  # names of its own
    found = [node.value for node in texts if id(node) not in prose]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [text for text in found if OF_ADAPTERS.search(text)]


def test_names_of_adapters_are_seen():
    code = '''
"""Of Keras."""
import keras.layers
from fuel import streams
def f(blocks):
    """Of Lasagne."""
    return ["blocks", "platoon_plugins.x", f"no {blocks} of Blocks", "TensorFlow", "blocks of memory", blocks]
'''
    found = ["blocks", "platoon_plugins.x", " of Blocks", "TensorFlow", "keras.layers", "fuel"]
    assert sorted(names_of_adapters(ast.parse(code))) == sorted(found)


@pytest.mark.parametrize("path", sources(BASE), ids=module_name)
def test_the_base_names_no_adapter(path):
    assert names_of_adapters(tree_of(path)) == []


@pytest.mark.parametrize("path", sources(BASE), ids=module_name)
def test_frameworks_are_imported_only_where_they_are_the_matter(path):
    place = path.relative_to(BASE).as_posix()
    allowed = {"theano"} if place.startswith(ABOUT_THEANO) else set()
    if place in ABOUT_DEVICES:
        allowed.add("pygpu")
    if place.startswith(ABOUT_TENSORS):
        allowed.add("torch")
    assert within(imports(path), FRAMEWORKS) == within(imports(path), allowed)


@pytest.mark.parametrize("path", sources(BASE), ids=module_name)
def test_one_file_of_the_job_chooses_back_ends(path):
    found = within(imports(path), BACK_ENDS)
    if path == BASE / "job" / "backends.py":
        assert found >= ALWAYS_CHOSEN
    elif path == BASE / "courier" / "process.py":  # a process of its own, for centers in shared memory alone
        assert within(found, {"platoon_base.centers.host", "platoon_base.centers.gossip"}) == found
    elif path == BASE / "collectives" / "hosts.py":  # which is the one of a host, and more
        assert within(found, {"platoon_base.collectives.host"}) == found != set()
    else:
        assert found == set()


def driver_calls(text):
    """List the functions of CUDA's driver and of NCCL that a text names."""
    driver, nccl = r"cu(?:Ctx|Device|Event|Init|Ipc|Launch|Mem|Module|Stream)\w*", r"nccl(?:Comm|Get|All|Re|Br)\w*"
    return set(re.findall(rf"\b(?:{driver}|{nccl})", text))


def test_calls_of_the_driver_are_seen():
    text = 'driver.call("cuMemAlloc_v2"); cuda.cuInit(0); custom(cuda, ncclCommAbort, nccl_group)'
    assert driver_calls(text) == {"cuMemAlloc_v2", "cuInit", "ncclCommAbort"}


@pytest.mark.parametrize("path", [*sources(BASE), *sources(PLUGINS)], ids=module_name)
def test_the_driver_and_nccl_have_one_place(path):
    code = ast.unparse(tree_of(path))  # without comments
    place = path.relative_to(path.parents[1]).as_posix()
    found = driver_calls(code)
    assert not {name for name in found if name.startswith("cu")} or place in CALLS_DRIVER
    assert not {name for name in found if name.startswith("nccl")} or place == "devices/nccl.py"


@pytest.mark.parametrize("path", [*sources(BASE), *sources(PLUGINS)], ids=module_name)
def test_no_memory_of_an_object_of_python_is_read(path):
    """An address that ``id`` returns is one of CPython's own, which nobody else may look into."""
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    at = [call for call in calls if ast.unparse(call.func).endswith((".from_address", ".string_at"))]
    assert [call.lineno for call in at if re.search(r"\bid\(", ast.unparse(call))] == []


@pytest.mark.parametrize("path", sources(BASE), ids=module_name)
def test_sockets_and_shared_memory_have_one_place_each(path):
    place = path.relative_to(BASE).as_posix()
    found = imports(path)
    assert not within(found, {"zmq"}) or place in ("channels/zmq.py", "channels/keys.py", "channels/host_link.py")
    assert not within(found, {"posix_ipc"}) or place == "shm/segments.py"
    allowed = {f"job/{name}.py" for name in ("attaching", "hosting", "backends", "files")}
    allowed |= {"cli/doctor.py", "cli/environment_report.py", "collectives/host_exchange.py"}
    allowed |= {
        "centers/gossip.py",
        "centers/gossip_hosts.py",
        "centers/gossip_memory.py",
        "centers/gossip_slots.py",
        "centers/host.py",
        "centers/host_memory.py",
        "centers/stripe_locks.py",
        "centers/device.py",
        "centers/device_directory.py",
    }
    allowed |= {"multihost/mirror.py"}
    allowed |= {"data/shared_data_memory.py", "data/shared_arrays.py"}
    assert not within(found, {"platoon_base.shm.segments"}) or place in allowed


NEED_A_FRAMEWORK = {"platoon_base.theano_ops", "platoon_base.torch_arrays", "platoon_base.torch_loops"}


def faces():
    """Name what the adapters import of the base: with the contracts, these are packages and modules with a face."""
    found = set().union(*(imports(path) for path in sources(PLUGINS)))
    return {name for name in within(found, {"platoon_base"}) if known(name)}


@pytest.mark.base
@pytest.mark.parametrize("face", sorted({"platoon_base", *faces()} - NEED_A_FRAMEWORK))
def test_the_public_face_has_all_that_it_offers(face):
    """Some names are imported only when they are asked for, so a wrong one would show late."""
    code = f"import {face} as face\nprint(*(name for name in face.__all__ if not hasattr(face, name)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.split() == []


@pytest.mark.parametrize("path", sources(PLUGINS), ids=module_name)
def test_plugins_leave_back_ends_to_the_job(path):
    assert within(imports(path), BACK_ENDS | {"platoon_base.shm.segments", "zmq", "posix_ipc"}) == set()


def prints_or_exits(tree):
    """List the calls of print() and of sys.exit(), and the raised SystemExit, by line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.exit", "exit", "quit"):
            found.append((node.lineno, ast.unparse(node.func)))
        elif isinstance(node, ast.Raise) and node.exc is not None and "SystemExit" in ast.unparse(node.exc):
            found.append((node.lineno, "SystemExit"))
    return sorted(found)


def test_prints_and_exits_are_seen():
    code = "print(1)\ndef f():\n    sys.exit(2)\n    raise SystemExit\n    console.print(3)\n"
    assert prints_or_exits(ast.parse(code)) == [(1, "print"), (3, "sys.exit"), (4, "SystemExit")]


@pytest.mark.parametrize("path", [*sources(BASE), *sources(PLUGINS)], ids=module_name)
def test_only_the_command_line_prints_or_exits(path):
    if path.parent != BASE / "cli" / "commands" and path != BASE / "__main__.py":
        assert prints_or_exits(tree_of(path)) == []


@pytest.mark.parametrize("path", [*sources(BASE), *sources(PLUGINS)], ids=module_name)
def test_conditions_are_not_checked_by_assert(path):
    """They vanish under ``python -O``."""
    found = [node.lineno for node in ast.walk(tree_of(path)) if isinstance(node, ast.Assert)]
    assert found == []


@pytest.mark.parametrize("path", sources(BASE), ids=module_name)
def test_arrays_are_laid_on_memory_by_the_one_function_that_keeps_it_mapped(path):
    """An array made by numpy.ndarray or from an address does not keep shared memory mapped: see array_on."""
    calls = [node.func for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call, ast.Attribute) and call.attr in ("ndarray", "as_array")]
    assert not made or path.name == "views.py"


LONGEST_FILE, LONGEST_FUNCTION = 600, 60


def lines_of(function):
    """Count the lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    return body[-1].end_lineno - body[0].lineno + 1


def test_the_lines_of_a_function_are_counted_without_its_docstring():
    (function,) = ast.parse(
        'def f():\n    """Text.\n\n    More.\n    """\n    a = 1\n    return (\n        a\n    )\n'
    ).body
    assert lines_of(function) == 4


@pytest.mark.parametrize("path", [*sources(BASE), *sources(PLUGINS)], ids=module_name)
def test_files_and_functions_are_short(path):
    text = path.read_text()
    found = [node for node in ast.walk(tree_of(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert [function.name for function in found if lines_of(function) > LONGEST_FUNCTION] == []
    assert len(text.splitlines()) <= LONGEST_FILE


MOST_METHODS, MOST_PARAMETERS = 25, 8
WIDER_CLASSES = {
    "platoon_base.worker.handle.Worker": 33,  # the contract with scripts: what the guides show
    "platoon_base.devices.cuda.Driver": 30,  # one method for each of the driver's calls
    "platoon_base.collectives.hosts_exchange.HostsExchange": 34,  # the steps of all calls, which share one state
    "platoon_plugins.blocks.training.Training": 27,
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


def test_methods_and_parameters_are_counted():
    (node,) = ast.parse(
        "class A:\n"
        "    def __init__(self, a, /, b, *c, d=1, **e): pass\n"
        "    def __len__(self): pass\n"
        "    @property\n    def f(self): pass\n"
        "    @f.setter\n    def f(self, value): pass\n"
        "    async def _g(self): pass\n"
    ).body
    assert methods_of(node) == {"f", "_g"}
    assert parameters_of(node) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("path", [*sources(BASE), *sources(PLUGINS)], ids=module_name)
def test_classes_are_narrow(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef):
            most = WIDER_CLASSES.get(f"{module_name(path)}.{node.name}", MOST_METHODS)
            assert len(methods_of(node)) <= most, node.name
            assert len(parameters_of(node)) <= MOST_PARAMETERS, node.name


# How tests and benchmarks are written.

# Private names of others than this project, which tests cannot do without: of Python, Blocks and Keras.
PRIVATE_OF_OTHERS = {"_exit", "_is_protocol", "_replace", "_asdict", "_fields", "_make"}
PRIVATE_OF_OTHERS |= {"algorithm._function", "_build_aggregator", "_learning_rate", "_make_train_function"}
PRIVATE_OF_OTHERS |= {"_shutdown", "_run_exitfuncs"}
PRIVATE_ATTRIBUTE = re.compile(r"(?:\w+|\)|\])\._[A-Za-z]\w*")
PRIVATE_BY_NAME = re.compile(r"(?:attr|patch|object)\([^()\"']*[\"'](?:[\w.]*\.)?(_[A-Za-z]\w*)[\"']")
IMPORTED_FROM_OURS = re.compile(r"from\s+platoon_[\w.]+\s+import\s+(\([^)]*\)|[^\n;]*)")


def private_names(text):
    """List the private names that Python code uses, scripts in its strings included, but for those of ``self``."""
    found = [name for name in PRIVATE_ATTRIBUTE.findall(text) if not name.startswith(("self._", "cls._"))]
    found += PRIVATE_BY_NAME.findall(text)
    found += [name for names in IMPORTED_FROM_OURS.findall(text) for name in re.findall(r"\b_[A-Za-z]\w*", names)]
    return [name for name in found if not {name, name.rpartition(".")[2]} & PRIVATE_OF_OTHERS]


def test_the_search_for_private_names_finds_all_ways_to_use_one():
    code = """
import platoon_base._kernels
from platoon_base.system.warn import said, _log
from platoon_base.views import (
    array_on,
    _views,
)
monkeypatch.setattr(warn, "_said", set())
monkeypatch.setattr("platoon_base.cli.doctor._devices", list)
x = group.members[0]._segment.closed, super()._count(1), getattr(x, '_names')
self._own = cls._own2 = os._exit(0), point._replace(x=1), "_epoch_ends", [_local], getattr(x, "name", _default)
"""
    attributes = ["platoon_base._kernels", "doctor._devices", "]._segment", ")._count"]
    names = ["_log", "_views", "_said", "_devices", "_names"]
    assert sorted(private_names(code)) == sorted(attributes + names)


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples"])
def test_the_library_is_used_by_its_public_names(folder):
    used = {path.name: private_names(path.read_text()) for path in sources(BASE.parent / folder) if path != THIS}
    assert len(used) > 4
    assert {name: names for name, names in used.items() if names} == {}


PRIVATE_OF_A_WORKER = re.compile(r"(?:\w*worker\w*|\bjob_of_one|\bconnect\(\))\._\w+")


def test_the_search_for_private_names_of_a_worker_finds_them():
    text = "x = worker._words.row(0)\nself.worker._arrays; solo_worker._row, job_of_one._shared, connect()._control"
    found = ["worker._words", "worker._arrays", "solo_worker._row", "job_of_one._shared", "connect()._control"]
    assert PRIVATE_OF_A_WORKER.findall(text + "; worker.global_rank; os._exit(0); dispatch_worker.x") == found


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples", "platoon_plugins"])
def test_who_has_a_worker_uses_its_public_names_alone(folder):
    """What a test sees beyond them is in tests/helpers/watching.py."""
    files = sources(BASE.parent / folder)
    assert len(files) > 4
    used = {path.name: PRIVATE_OF_A_WORKER.findall(path.read_text()) for path in files if path != THIS}
    assert {name: names for name, names in used.items() if names} == {}


def test_what_the_tests_share_has_names_of_its_own():
    """Their folder is on the path of workers, where a name found elsewhere as well would hide one of the two."""
    here = Path(__file__).parents[1] / "helpers"
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != here]
    names = [path.stem for path in here.glob("*.py")]
    assert "watching" in names
    assert [name for name in names if importlib.machinery.PathFinder.find_spec(name, elsewhere)] == []
