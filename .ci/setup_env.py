"""Build .venv on Python 3.11, or find in a second that it is as it should be.

Usage: python3.11 .ci/setup_env.py [--for-demo] [--base-pythons] [--keras]
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True

import system_packages
import venvs
from common import (
    CACHE,
    CI,
    ROOT,
    STAMP,
    VENV,
    SetupError,
    fail,
    fingerprint,
    only_one,
    project_metadata,
    read_stamp,
    run,
    say,
    succeeds,
)

CONSTRAINTS = CI / "constraints-py311.txt"
WHEELS = CACHE / "wheels"
DEBIAN_PYGPU = Path("/usr/lib/python3/dist-packages/pygpu")
# Their setup.py files need the setuptools and wheel of the constraints, and NumPy, in place.
OLD_SDISTS = ("picklable-itertools", "theano", "lasagne")
BUILD_TOOLS = ("setuptools", "wheel")
# Compiled against the system's MPI; the last version whose source holds the C code and so needs no Cython.
OVER_MPI = ("mpi4py",)
EXTENSIONS = ("_kernels", "_collectives", "_excerpt", "_guard")
FUEL_EXTENSION = re.compile(r",\s*ext_modules=\[Extension\(.*?\)\]", re.DOTALL)


def pins() -> dict[str, str]:
    """Every pinned requirement by its lower-case project name."""
    lines = [line.strip() for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()]
    return {line.partition("==")[0].lower(): line for line in lines if line and not line.startswith("#")}


def has_mpi() -> bool:
    return shutil.which("mpicc") is not None


def wanted() -> dict[str, str]:
    """The pinned requirements, but for those that are built last."""
    return {name: requirement for name, requirement in pins().items() if name not in OVER_MPI}


def expected_stamp(missing: list[str]) -> str:
    scripts = [CI / "setup_env.py", CI / "common.py", CI / "system_packages.py", CI / "venvs.py"]
    compiled = sorted((ROOT / "platoon_base").glob("_*.[ch]"))
    sources = [ROOT / "setup.py", CONSTRAINTS, *compiled, *scripts]
    interpreter = f"{sys.base_prefix} {platform.python_version()} {ROOT}"
    # make clean removes the extension, which has to bring the set-up back.
    found = [str(has_extensions()), str(pygpu_link().exists())]
    return fingerprint(sources, interpreter, project_metadata(), " ".join(missing), *found)


def is_ready(missing: list[str]) -> bool:
    """The stamp says what was built, the files and the import that it still stands."""
    python = VENV / "bin" / "python"
    return (
        read_stamp(VENV) == expected_stamp(missing)
        and succeeds(python, venvs.HAS_ITS_FILES, *wanted(), "platoon-plugins")
        and succeeds(python, "import platoon_base")
    )


def pip(*arguments: str | Path, what: str) -> str:
    return venvs.pip(VENV, *arguments, what=what)


def check_essentials(apt: system_packages.AptResult) -> None:
    """Stop where nothing could be built; everything else may be missing."""
    if shutil.which("g++") is None:
        raise SetupError(_essential("a C++ compiler (g++), which Theano compiles with", apt))
    if not venvs.can_create():
        raise SetupError(_essential("Python's venv module with ensurepip, which creates .venv", apt))


def _essential(what: str, apt: system_packages.AptResult) -> str:
    reason = f"; not installed now: {apt.reason}" if apt.reason else ""
    line = f"\nRun this as root, then make again:\n  {system_packages.apt_line(apt.missing)}" if apt.missing else ""
    return f"this machine lacks {what}{reason}.{line}"


def install_packages() -> None:
    """Install the pinned packages; the list is complete, so no resolver has to run."""
    by_name = wanted()
    apart = {*OLD_SDISTS, *BUILD_TOOLS, "fuel"}
    wheels = [requirement for name, requirement in by_name.items() if name not in apart]
    say(f"installing {len(by_name)} Python packages")
    pip("install", "-q", "--no-deps", *(by_name[name] for name in BUILD_TOOLS), what="installing the build tools")
    pip("install", "-q", "--no-deps", "--prefer-binary", *wheels, what="installing the Python packages")
    sdists = [by_name[name] for name in OLD_SDISTS]
    pip("install", "-q", "--no-deps", "--no-build-isolation", *sdists, what="installing Theano and Lasagne")
    pip("install", "-q", "--no-deps", fuel_wheel(by_name["fuel"]), what="installing Fuel")


def build_over_mpi() -> None:
    """Build what takes longer than all else together, and is only there to be compared with."""
    for name in OVER_MPI:
        if has_mpi() and not succeeds(VENV / "bin" / "python", venvs.HAS_ITS_FILES, name):
            say(f"building {name}")
            options = ["--no-deps", "--no-build-isolation", "--no-binary", name]
            pip("install", "-q", *options, pins()[name], what=f"building {name}")


def fuel_wheel(requirement: str) -> Path:
    """Fuel's wheel without its C extension, which no compiler takes after Python 3.6; all but image windowing works."""
    version = requirement.partition("==")[2]
    wheel = WHEELS / f"fuel-{version}-py3-none-any.whl"
    if wheel.exists():
        return wheel
    WHEELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source = unpack_fuel(requirement, Path(folder))
        drop_extension(source / "setup.py")
        pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", WHEELS, source, what="building Fuel's wheel")
    if not wheel.exists():
        raise SetupError(f"building Fuel gave no {wheel.name}, but {sorted(path.name for path in WHEELS.iterdir())}")
    return wheel


def unpack_fuel(requirement: str, folder: Path) -> Path:
    options = ["--no-deps", "--no-binary", "fuel", "--no-build-isolation"]
    pip("download", "-q", *options, "-d", folder, requirement, what="downloading Fuel's source")
    (archive,) = folder.glob("fuel-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder)
    return folder / archive.name.removesuffix(".tar.gz")


def drop_extension(setup_file: Path) -> None:
    text, replaced = FUEL_EXTENSION.subn("", setup_file.read_text(encoding="utf-8"))
    if replaced != 1:
        raise SetupError(
            f"Fuel's setup.py is not the one known here: `ext_modules=[Extension(...)]` stands there {replaced} times, "
            "not once. Pin fuel==0.2.0 again in .ci/constraints-py311.txt, or adapt FUEL_EXTENSION in .ci/setup_env.py"
        )
    setup_file.write_text(text, encoding="utf-8")


def pygpu_link() -> Path:
    return VENV / "lib" / "python3.11" / "site-packages" / "pygpu"


def link_pygpu() -> None:
    """Link the one folder: the whole of dist-packages would bring Debian's NumPy along."""
    link = pygpu_link()
    if link.is_symlink():
        link.unlink()
    if DEBIAN_PYGPU.is_dir() and not link.exists():
        link.symlink_to(DEBIAN_PYGPU)


def install_project() -> None:
    say("installing platoon-plugins itself and its C extensions")
    pip("install", "-q", "--no-deps", "--no-build-isolation", "-e", ROOT, what="installing the project")


def has_extensions() -> bool:
    return all(any((ROOT / "platoon_base").glob(f"{name}*.so")) for name in EXTENSIONS)


def summarize(apt: system_packages.AptResult) -> None:
    say(f"ready: .venv with Python {platform.python_version()}, {', '.join(_installed())}")
    skipped = [group for group in system_packages.groups() if set(group.packages) & set(apt.missing)]
    for group in skipped:
        say(f"skipped: {group.gives}; {group.without}")
    if not has_extensions():
        say("skipped: the C extensions, which did not compile; NumPy is used, many times slower")
    if not has_mpi():
        say("skipped: mpi4py, as there is no mpicc; the benchmark of all-reduce has nothing to compare with")
    if apt.missing:
        say(f"not installed: {apt.reason}; to get what is skipped, run this as root, then make setup:")
        print(f"  {system_packages.apt_line(apt.missing)}", flush=True)


def _installed() -> list[str]:
    by_name = pins()
    names = [by_name[name].replace("==", " ") for name in ("numpy", "scipy", "theano", "lasagne", "keras", "fuel")]
    system = [group.gives for group in system_packages.OPTIONAL if not _lacks(group)]
    return [*names, *(["C extensions"] if has_extensions() else []), *system]


def _lacks(group: system_packages.Group) -> bool:
    return bool(set(group.packages) & set(system_packages.missing_packages()))


def set_up() -> None:
    missing = system_packages.missing_packages()
    if is_ready(missing):
        absent = [group.gives for group in system_packages.groups() if set(group.packages) & set(missing)]
        without = f", without {', '.join(absent)}: {system_packages.apt_line(missing)}" if absent else ""
        say(f"ready (.venv is up to date{without})")
        return
    apt = system_packages.install(missing)
    check_essentials(apt)
    venvs.create(VENV)
    (VENV / STAMP).unlink(missing_ok=True)
    install_packages()
    link_pygpu()
    install_project()
    if not succeeds(VENV / "bin" / "python", "import platoon_base"):
        error = run([VENV / "bin" / "python", "-c", "import platoon_base"], "importing platoon_base from .venv")
        raise SetupError(error)
    (VENV / STAMP).write_text(expected_stamp(apt.missing), encoding="utf-8")
    summarize(apt)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for-demo", action="store_true", help="leave out what the demo does not need and takes long")
    parser.add_argument("--base-pythons", action="store_true", help="also prepare the environments of other Pythons")
    parser.add_argument("--keras", action="store_true", help="also prepare the environments of Keras 3")
    options = parser.parse_args()
    if sys.version_info[:2] != (3, 11):
        return fail(
            SetupError(f"this is Python {platform.python_version()}; run make setup, which finds a Python 3.11")
        )
    try:
        with only_one():
            set_up()
            if not options.for_demo:
                build_over_mpi()
            if options.base_pythons:
                import base_pythons

                for result in base_pythons.prepare_all():
                    say(result.describe())
            if options.keras:
                import keras_envs

                for result in keras_envs.prepare_all():
                    say(result.describe())
    except SetupError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
