"""Small environments on the other Pythons found, 3.9 to 3.13, in which platoon_base's own tests run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import venvs
from common import CI, ROOT, STAMP, VENV, SetupError, fingerprint, project_metadata, read_stamp, run, say, succeeds

VERSIONS = ("3.9", "3.10", "3.12", "3.13")
# Two at a time: more only share the network and the cores.
PARALLEL = 2
NEEDS = "import ctypes, ensurepip, ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
PRINT_REQUIREMENTS = """
import importlib.metadata, json
from packaging.requirements import Requirement
needs = [Requirement(line) for line in importlib.metadata.requires("platoon-plugins")]
here = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": "test"})]
print(json.dumps([f"{need.name}{need.specifier}" for need in here]))
"""


class BasePython(NamedTuple):
    """One Python version: its environment, or why there is none; `broken` tells a failure from an absence."""

    version: str
    venv: Path
    problem: str = ""
    broken: bool = False

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    def describe(self) -> str:
        if not self.problem:
            return f"Python {self.version}: ready ({self.venv.name})"
        return f"Python {self.version}: {'FAILED' if self.broken else 'skipped'}, {self.problem}"


def prepare_all(versions: tuple[str, ...] = VERSIONS) -> list[BasePython]:
    """Environments of these versions, created where there is none yet; one failing does not stop the others."""
    requirements = base_requirements()
    with ThreadPoolExecutor(PARALLEL) as pool:
        prepared = list(pool.map(lambda version: _prepare(version, requirements), versions))
    # One after the other: each writes the metadata of the same source tree.
    return [_add_project(base, requirements) for base in prepared]


def base_requirements() -> list[str]:
    """What platoon_base needs and what its tests need, as pyproject.toml says."""
    return json.loads(run([VENV / "bin" / "python", "-c", PRINT_REQUIREMENTS], "reading the requirements"))


def find_interpreter(version: str) -> tuple[str | None, str]:
    """An interpreter that runs and can create environments, or the reason why there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = shutil.which(f"python{version}")
    candidates = [on_path] if on_path else []
    candidates += sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}")), reverse=True)
    reason = "not found"
    for candidate in candidates:
        # Outside the tree: a local pyenv setting or a module of the same name must not decide.
        result = subprocess.run([candidate, "-c", NEEDS], capture_output=True, text=True, cwd=CI)
        if result.returncode == 0 and result.stdout.strip() == version:
            return candidate, ""
        last = (result.stderr.strip() or "no answer").splitlines()
        reason = f"{candidate} does not work: {last[-1] if 'Error' in last[-1] else last[0]}"
    return None, reason


def _prepare(version: str, requirements: list[str]) -> BasePython:
    base = BasePython(version, ROOT / f".venv-base-{version}")
    interpreter, reason = find_interpreter(version)
    if interpreter is None:
        return base._replace(problem=reason)
    if _is_ready(base, requirements):
        return base
    try:
        say(f"creating {base.venv.name}")
        if not succeeds(base.python, "import pip"):
            run([interpreter, "-m", "venv", "--clear", base.venv], f"creating {base.venv.name}")
        options = ["-q", "--prefer-binary", "setuptools>=70.1"]
        venvs.pip(base.venv, "install", *options, *requirements, what=f"pip for Python {base.version}")
    except SetupError as error:
        return base._replace(problem=str(error), broken=True)
    return base


def _add_project(base: BasePython, requirements: list[str]) -> BasePython:
    if base.problem or _is_ready(base, requirements):
        return base
    try:
        venvs.install_project_beside(base.venv)
    except SetupError as error:
        return base._replace(problem=str(error), broken=True)
    (base.venv / STAMP).write_text(_stamp(requirements), encoding="utf-8")
    return base


def _is_ready(base: BasePython, requirements: list[str]) -> bool:
    return read_stamp(base.venv) == _stamp(requirements) and succeeds(base.python, "import platoon_base, pytest")


def _stamp(requirements: list[str]) -> str:
    files = [CI / "base_pythons.py", CI / "venvs.py", ROOT / "setup.py"]
    return fingerprint(files, str(ROOT), project_metadata(), *requirements)
