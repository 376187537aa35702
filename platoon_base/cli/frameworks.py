"""Checks of the frameworks: each is imported in a process of its own, prepared as a worker is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

__all__ = ["BLOCKS", "Check", "framework_checks", "installed"]

_TIMEOUT_S = 120
_LONGEST_REASON = 120  # characters
_PREPARE = "from platoon_base import compat; compat.apply(); "
_COMPILE = "import theano; x = theano.tensor.vector(); assert theano.function([x], theano.tensor.exp(x))([0.0]) == 1"
_LAST_PYTHON_OF_THEANO, _FIRST_NUMPY_WITHOUT_THEANO = (3, 11), (1, 24)
_BACKENDS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "theano": "Theano"}
# No package index has it. Fuel and Theano are there already; pip would try to build them anew.
BLOCKS = "blocks @ git+https://github.com/mila-iqia/blocks.git"
# What installs Theano: a checkout has a Makefile for it, and those who installed a wheel have pip.
_IS_CHECKOUT = (Path(__file__).parents[2] / "Makefile").exists()
_SETUP = "make setup" if _IS_CHECKOUT else "pip install 'platoon-plugins[theano]'"
_BLOCKS_REMEDY = f"{_SETUP}, then pip install --no-deps --no-build-isolation '{BLOCKS}'"
# Several distributions have the module.
_DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")}


class Check(NamedTuple):
    """The result of one check.

    Attributes
    ----------
    name : str
    works : bool
    finding : str
        A version, or the fault.
    remedy : str
        How to get it; empty if it works.
    group : str
        The heading that it stands below.
    needed : bool
        Whether jobs of any framework need it.
    goes_with : str
        The framework whose scripts alone use it; "" for one by itself.
    absent : bool
        Whether it is simply not there, rather than broken.
    """

    name: str
    works: bool
    finding: str
    remedy: str = ""
    group: str = ""
    needed: bool = False
    goes_with: str = ""
    absent: bool = False


def framework_checks() -> Iterator[Check]:
    """Try one framework after the other; each takes seconds."""
    theano = _theano()
    yield theano
    beside_theano = "make setup" if theano.works else "install Theano first; make setup does"
    yield _importable("Lasagne", "lasagne", beside_theano if _IS_CHECKOUT else "pip install 'platoon-plugins[lasagne]'")
    yield _importable("Fuel", "fuel", "make setup, or as docs/compat.md says" if _IS_CHECKOUT else "see docs/compat.md")
    yield _importable("Blocks", "blocks", _BLOCKS_REMEDY)
    works = {"theano"} if theano.works else set()
    for module in ("torch", "jax", "tensorflow"):
        where = "in an environment without Theano: " if installed("theano", "").works else ""
        check = _importable(_BACKENDS[module], module, f"{where}pip install {module}, if Keras 3 is to run on it")
        works |= {module} if check.works else set()
        yield check
    yield _keras(works)
    yield _importable("mpi4py", "mpi4py", "pip install mpi4py")


def installed(distribution: str, remedy: str) -> Check:
    """Look for a distribution of this name, or another one with the same module."""
    for name in _DISTRIBUTIONS.get(distribution, (distribution,)):
        try:
            return Check(distribution, True, metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return Check(distribution, False, "not installed", remedy, absent=True)


def _theano() -> Check:
    """Compile a function: Theano can often be imported where nothing compiles."""
    numpy = metadata.version("numpy")
    unsuitable = tuple(map(int, numpy.split(".")[:2])) >= _FIRST_NUMPY_WITHOUT_THEANO
    if sys.version_info[:2] > _LAST_PYTHON_OF_THEANO:
        remedy = f"Theano ends at Python 3.11: {_SETUP} there, or make an environment for it as docs/compat.md says"
    elif unsuitable and not installed("theano", "").works:
        remedy = f"in an environment of its own, with NumPy below 1.24: {_SETUP}, or as docs/compat.md says"
    elif unsuitable:
        own = ", which make setup builds" if _IS_CHECKOUT else ""
        remedy = f"pip install 'numpy<1.24'; best in an environment of its own{own}"
    else:
        remedy = ("make setup (Python 3.11), or " if _IS_CHECKOUT else "") + "pip install 'platoon-plugins[theano]'"
    fails = f"cannot compile with NumPy {numpy}, it ends at 1.23" if unsuitable else "cannot compile"
    return _importable("Theano", "theano", remedy, _COMPILE, fails)


def _keras(works: set[str]) -> Check:
    """Import Keras with the back end that it would choose; where that does not work, name those that do."""
    found = installed("keras", "pip install 'platoon-plugins[keras]', and torch, jax or tensorflow beside it")
    if not found.works:
        return found._replace(name="Keras")
    version = tuple(int(part) for part in found.finding.split(".")[:2])
    able = ("theano",) if version < (2, 4) else ("torch", "jax", "tensorflow") if version >= (3, 0) else ("tensorflow",)
    usable = [backend for backend in able if backend in works]
    names = " or ".join(_BACKENDS[backend] for backend in able)
    if not usable:
        how = _SETUP if able == ("theano",) else f"pip install {' or '.join(able)}"
        return Check("Keras", False, f"{found.finding}, needs {names}, which does not work here", how)
    chosen = _run("import keras; print(keras.backend.backend())", os.environ)
    if not chosen.reason:
        return Check("Keras", True, f"{found.finding}, on {_BACKENDS.get(chosen.last_line, chosen.last_line)}")
    remedy = f"set KERAS_BACKEND={' or '.join(usable)}"
    set_to = os.environ.get("KERAS_BACKEND")
    with_what = f"KERAS_BACKEND={set_to}" if set_to else "its default back end"
    if not any(not _run("import keras", {**os.environ, "KERAS_BACKEND": backend}).reason for backend in usable):
        with_what, remedy = f"KERAS_BACKEND={usable[0]} either", "install it anew"
    return Check("Keras", False, f"{found.finding}, cannot be imported with {with_what}: {chosen.reason}", remedy)


def _importable(name: str, module: str, remedy: str, code: str = "", fails: str = "cannot be imported") -> Check:
    """Import a framework, or run other code with it."""
    found = installed(module, remedy)
    if not found.works:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            return found._replace(name=name)
        found = Check(name, True, f"in {os.path.dirname(spec.origin)}")  # a checkout on PYTHONPATH
    ran = _run(code or f"import {module}", os.environ)
    if ran.reason:
        return Check(name, False, f"{found.finding}, {fails}: {ran.reason}", remedy)
    return found._replace(name=name)


class _Ran(NamedTuple):
    """The result of a process: its last line, and why it failed, if it did."""

    last_line: str
    reason: str


def _run(code: str, environment: Mapping[str, str]) -> _Ran:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PREPARE + code],
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _Ran("", f"it takes over {_TIMEOUT_S} s")
    lines = done.stdout.strip().splitlines() or [""]
    return _Ran(lines[-1], _why(done.stderr) if done.returncode else "")


def _why(errors: str) -> str:
    """Pick the error out of a traceback; Theano puts the whole C program behind it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (named or lines or ["no message"])[-1][:_LONGEST_REASON]
