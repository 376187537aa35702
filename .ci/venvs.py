"""Virtual environments: how one is created, what makes it whole, and the project in those beside .venv."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from common import ROOT, run, say, succeeds

# Fails unless the distributions named, or all there are, have their files (bytecode may come and go).
HAS_ITS_FILES = """
import importlib.metadata as metadata, sys
found = [metadata.distribution(name) for name in sys.argv[1:]] or metadata.distributions()
for file in (file for distribution in found for file in distribution.files or ()):
    if file.suffix != ".pyc" and not file.locate().exists():
        sys.exit(f"{file} is gone")
"""


def can_create() -> bool:
    """There is a way to create an environment with this interpreter."""
    return _has_ensurepip() or _virtualenv() is not None or _outer_pip()


def create(venv: Path) -> None:
    """Create an environment afresh, unless it stands on this very interpreter and is whole as far as it goes."""
    python = venv / "bin" / "python"
    same = f"import pip, sys; assert (sys.base_prefix, sys.version) == {(sys.base_prefix, sys.version)!r}"
    # pip would take what has lost files for installed.
    if succeeds(python, same) and succeeds(python, HAS_ITS_FILES):
        return
    what = f"creating {venv.name}"
    say(f"{what} with Python {platform.python_version()}")
    virtualenv = _virtualenv()
    if _has_ensurepip():
        run([sys.executable, "-m", "venv", "--clear", venv], what)
    elif virtualenv is not None:
        run([*virtualenv, "--clear", venv], what)
    else:
        run([sys.executable, "-m", "venv", "--clear", "--without-pip", venv], what)
        command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "pip"]
        run(command, f"installing pip into {venv.name}")


def pip(venv: Path, *arguments: str | Path, what: str, environment: dict[str, str] | None = None) -> str:
    return run([venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", *arguments], what, env=environment)


def install_project_beside(venv: Path) -> None:
    """Install the project into an environment beside .venv, one at a time: each writes the same metadata."""
    # The extensions that .venv built in place serve every Python (limited API): they are not built again.
    environment = {**os.environ, "PLATOON_BUILD_EXTENSION": "0"}
    options = ["-q", "--no-deps", "--no-build-isolation"]
    what = f"installing the project into {venv.name}"
    pip(venv, "install", *options, "-e", ROOT, what=what, environment=environment)


def _has_ensurepip() -> bool:
    return succeeds(sys.executable, "import ensurepip, venv")


def _virtualenv() -> list[str] | None:
    if succeeds(sys.executable, "import virtualenv"):
        return [sys.executable, "-m", "virtualenv"]
    found = shutil.which("virtualenv")
    return [found, "-p", sys.executable] if found else None


def _outer_pip() -> bool:
    """A pip that can install into another environment (--python came with pip 22.3)."""
    command = [sys.executable, "-m", "pip", "--python", sys.executable, "--version"]
    return subprocess.run(command, capture_output=True).returncode == 0
