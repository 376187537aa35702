"""Environments for Keras 3, which needs a newer NumPy than Theano has: with PyTorch and JAX, and with TensorFlow.

Keras 2.3.1 on Theano is in .venv.
"""

from __future__ import annotations

import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import venvs
from base_pythons import base_requirements
from common import CI, ROOT, STAMP, SetupError, fingerprint, project_metadata, read_stamp, say, succeeds

# The build tools are needed for the project itself, the rest by its tests; the versions are in the constraints.
NOTEBOOK = ("cloudpickle", "ipykernel", "nbclient")
COMMON = ("setuptools", "wheel", "keras", "scikit-learn")


class KerasEnv(NamedTuple):
    """One environment and the back ends in it, or why there is none; `broken` tells a failure from an absence."""

    name: str
    backends: tuple[str, ...]
    packages: tuple[str, ...]
    problem: str = ""
    broken: bool = False

    @property
    def venv(self) -> Path:
        return ROOT / f".venv-{self.name}"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def constraints(self) -> Path:
        return CI / f"constraints-{self.name}.txt"

    def describe(self) -> str:
        title = f"Keras on {', '.join(self.backends)}"
        if not self.problem:
            return f"{title}: ready ({self.venv.name})"
        return f"{title}: {'FAILED' if self.broken else 'skipped'}, {self.problem}"


# keras-tuner 1.4.8 imports six, and does not say so.
TUNER = ("keras-tuner", "six")
# TensorFlow apart: it is large, and its h5py is another.
ENVIRONMENTS = (
    KerasEnv("keras3", ("torch", "jax"), ("torch", "jax", "pandas", "orbax-checkpoint", *TUNER, *NOTEBOOK)),
    KerasEnv("tf", ("tensorflow",), ("tensorflow-cpu", "tensorboard")),
)


def prepare_all() -> list[KerasEnv]:
    """All environments, created where they are missing; one failing does not stop the other."""
    requirements = base_requirements()
    with ThreadPoolExecutor(len(ENVIRONMENTS)) as pool:
        prepared = list(pool.map(lambda env: _prepare(env, requirements), ENVIRONMENTS))
    return [_add_project(env, requirements) for env in prepared]


def _prepare(env: KerasEnv, requirements: list[str]) -> KerasEnv:
    if _is_ready(env, requirements):
        return env
    if not venvs.can_create():
        return env._replace(problem="this Python has neither ensurepip nor virtualenv")
    try:
        venvs.create(env.venv)
        (env.venv / STAMP).unlink(missing_ok=True)
        say(f"installing Keras on {', '.join(env.backends)} into {env.venv.name}")
        wanted = [*COMMON, *env.packages, *requirements]
        options = ["-q", "--prefer-binary", "-c", env.constraints]
        venvs.pip(env.venv, "install", *options, *wanted, what=f"installing packages into {env.venv.name}")
    except SetupError as error:
        return env._replace(problem=str(error), broken=True)
    return env


def _add_project(env: KerasEnv, requirements: list[str]) -> KerasEnv:
    if env.problem or _is_ready(env, requirements):
        return env
    try:
        venvs.install_project_beside(env.venv)
    except SetupError as error:
        return env._replace(problem=str(error), broken=True)
    (env.venv / STAMP).write_text(_stamp(env, requirements), encoding="utf-8")
    return env


def _is_ready(env: KerasEnv, requirements: list[str]) -> bool:
    # Importing the back ends would take ten times as long as looking at their files.
    return read_stamp(env.venv) == _stamp(env, requirements) and succeeds(env.python, venvs.HAS_ITS_FILES)


def _stamp(env: KerasEnv, requirements: list[str]) -> str:
    files = [CI / "keras_envs.py", CI / "venvs.py", env.constraints, ROOT / "setup.py"]
    interpreter = f"{sys.base_prefix} {platform.python_version()} {ROOT}"
    return fingerprint(files, interpreter, project_metadata(), *requirements)
