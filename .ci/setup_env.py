"""Build .venv on Python 3.11, or find in a second that it is as it should be.

Usage: python3.11 .ci/setup_env.py
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.dont_write_bytecode = True

import system_packages

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".setup-stamp"
CONSTRAINTS = ROOT / ".ci" / "constraints-py311.txt"
DEBIAN_PYGPU = Path("/usr/lib/python3/dist-packages/pygpu")
PYGPU_LINK = VENV / "lib" / "python3.11" / "site-packages" / "pygpu"
# Their setup.py files need the setuptools and wheel of the constraints, and NumPy, in place.
OLD_SDISTS = ("picklable-itertools", "theano", "lasagne")
BUILD_TOOLS = ("setuptools", "wheel")
EXTENSIONS = ("_kernels", "_collectives", "_codecs", "_excerpt", "_guard")
# No compiler takes Fuel's extension after Python 3.6; without it all but the windowing of images works.
FUEL_EXTENSION = re.compile(r",\s*ext_modules=\[Extension\(.*?\)\]", re.DOTALL)


class SetupError(Exception):
    """The set-up cannot go on; the message says what was found and what to do."""


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(command: list[object], what: str) -> None:
    result = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        raise SetupError(f"{what} failed ({' '.join(map(str, command[:6]))} ...):\n{result.stdout.rstrip()}")


def pip(*arguments: object, what: str) -> None:
    run([PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments, "-q", "--no-deps"], what)


def succeeds(*command: object) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the lock of the set-up: two makes at once would write into one environment."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with open(ROOT / ".cache" / "setup.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another make setup to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pins() -> dict[str, str]:
    """Every pinned requirement by its lower-case project name."""
    lines = [line.strip() for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()]
    return {line.partition("==")[0].lower(): line for line in lines if line and not line.startswith("#")}


def has_extensions() -> bool:
    return all(any((ROOT / "platoon_base").glob(f"{name}*.so")) for name in EXTENSIONS)


def expected_stamp(missing: list[str]) -> str:
    """Return a hash of what decides what .venv contains."""
    import tomllib  # Python 3.11, which is checked after this module is imported

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # make clean removes the extensions, which has to bring the set-up back.
    found = [has_extensions(), PYGPU_LINK.exists(), missing, sys.base_prefix, sys.version, str(ROOT)]
    said = [project["build-system"], project["project"], project["tool"]["setuptools"]]
    sources = [ROOT / "setup.py", CONSTRAINTS, Path(__file__), *sorted((ROOT / "platoon_base").glob("_*.[ch]"))]
    return hashlib.sha256(b"".join([repr((found, said)).encode(), *map(Path.read_bytes, sources)])).hexdigest()


def create_venv(missing: list[str], reason: str) -> None:
    """Create .venv afresh, unless a set-up has ended in it, on this very interpreter."""
    same = f"import pip, sys; assert (sys.base_prefix, sys.version) == {(sys.base_prefix, sys.version)!r}"
    if STAMP.exists() and succeeds(PYTHON, "-c", same):
        STAMP.unlink()
        return
    here = [sys.executable, "-m"]
    if shutil.which("g++") is None:
        lacks = "a C++ compiler (g++), which Theano compiles with"
    elif succeeds(sys.executable, "-c", "import ensurepip, venv"):
        return _create([*here, "venv", "--clear", VENV])
    elif succeeds(*here, "virtualenv", "--version"):
        return _create([*here, "virtualenv", "--clear", VENV])
    elif shutil.which("virtualenv"):
        return _create(["virtualenv", "-p", sys.executable, "--clear", VENV])
    elif shutil.which("uv"):
        return _create(["uv", "venv", "--seed", "--clear", "-p", sys.executable, VENV])
    elif succeeds(*here, "pip", "--python", sys.executable, "--version"):  # since pip 22.3
        _create([*here, "venv", "--clear", "--without-pip", VENV])
        return run([*here, "pip", "--python", PYTHON, "install", "-q", "pip"], "installing pip into .venv")
    else:
        lacks = "Python's venv module with ensurepip, which creates .venv"
    why = f"; not installed now: {reason}" if reason else ""
    line = f"\nRun this as root, then make again:\n  {system_packages.apt_line(missing)}" if missing else ""
    raise SetupError(f"this machine lacks {lacks}{why}.{line}")


def _create(command: list[object]) -> None:
    say(f"creating .venv with Python {platform.python_version()}")
    run(command, "creating .venv")


def install_packages() -> None:
    """Install the pinned packages; the list is complete, so no resolver has to run."""
    # Without MPI, importing mpi4py fails.
    by_name = {name: line for name, line in pins().items() if name != "mpi4py" or shutil.which("mpicc")}
    wheels = [requirement for name, requirement in by_name.items() if name not in (*OLD_SDISTS, *BUILD_TOOLS, "fuel")]
    say(f"installing {len(by_name)} Python packages")
    pip("install", *(by_name[name] for name in BUILD_TOOLS), what="installing the build tools")
    pip("install", "--prefer-binary", *wheels, what="installing the Python packages")
    sdists = [by_name[name] for name in OLD_SDISTS]
    pip("install", "--no-build-isolation", *sdists, what="installing Theano and Lasagne")
    if not succeeds(PYTHON, "-c", f"import importlib.metadata as m; assert m.version('fuel') in {by_name['fuel']!r}"):
        install_fuel(by_name["fuel"])


def install_fuel(requirement: str) -> None:
    options = ["--no-binary", "fuel", "--no-build-isolation"]
    with tempfile.TemporaryDirectory() as folder:
        pip("download", *options, "-d", folder, requirement, what="downloading Fuel's source")
        (archive,) = Path(folder).glob("fuel-*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder)
        source = Path(folder) / archive.name.removesuffix(".tar.gz")
        text, replaced = FUEL_EXTENSION.subn("", (source / "setup.py").read_text(encoding="utf-8"))
        if replaced != 1:
            raise SetupError(
                "Fuel's setup.py is not the one known here: `ext_modules=[Extension(...)]` stands there "
                f"{replaced} times, not once. Pin fuel==0.2.0 again in .ci/constraints-py311.txt, or adapt "
                "FUEL_EXTENSION in .ci/setup_env.py"
            )
        (source / "setup.py").write_text(text, encoding="utf-8")
        pip("install", "--no-build-isolation", source, what="installing Fuel")


def link_pygpu() -> None:
    """Link the one folder: the whole of dist-packages would bring Debian's NumPy along."""
    if PYGPU_LINK.is_symlink():
        PYGPU_LINK.unlink()
    if DEBIAN_PYGPU.is_dir() and not PYGPU_LINK.exists():
        PYGPU_LINK.symlink_to(DEBIAN_PYGPU)


def summarize(missing: list[str], reason: str) -> None:
    skipped = system_packages.groups_without(missing)
    by_name = pins()
    names = [by_name[name].replace("==", " ") for name in ("numpy", "scipy", "theano", "lasagne", "keras", "fuel")]
    names += ["C extensions"] if has_extensions() else []
    names += [group.gives for group in system_packages.OPTIONAL if group not in skipped]
    say(f"ready: .venv with Python {platform.python_version()}, {', '.join(names)}")
    for group in skipped:
        say(f"skipped: {group.gives}; {group.without}")
    if not has_extensions():
        say("skipped: the C extensions, which did not compile; NumPy is used, many times slower")
    if shutil.which("mpicc") is None:
        say("skipped: mpi4py, as there is no mpicc; the benchmark of all-reduce has nothing to compare with")
    if missing:
        say(f"not installed: {reason}; to get what is skipped, run this as root, then make setup:")
        print(f"  {system_packages.apt_line(missing)}", flush=True)


def set_up() -> None:
    missing, import_it = system_packages.missing_packages(), [PYTHON, "-c", "import platoon_base"]
    if STAMP.exists() and STAMP.read_text(encoding="utf-8") == expected_stamp(missing) and succeeds(*import_it):
        absent = ", ".join(group.gives for group in system_packages.groups_without(missing))
        without = f", without {absent}: {system_packages.apt_line(missing)}" if absent else ""
        return say(f"ready (.venv is up to date{without})")
    missing, reason = system_packages.install(missing)
    create_venv(missing, reason)
    install_packages()
    link_pygpu()
    say("installing platoon-plugins itself and its C extensions")
    pip("install", "--no-build-isolation", "-e", ROOT, what="installing the project")
    run(import_it, "importing platoon_base from .venv")
    STAMP.write_text(expected_stamp(missing), encoding="utf-8")
    summarize(missing, reason)


def main() -> int:
    try:
        if sys.version_info[:2] != (3, 11):
            raise SetupError(f"this is Python {platform.python_version()}; run make setup, which finds a Python 3.11")
        with only_one():
            set_up()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    os.chdir(ROOT / ".ci")  # a local setting of pyenv, or a module of the same name, shall not decide
    raise SystemExit(main())
