"""Theano, which the base itself uses."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING

from platoon_base.frameworks.registered import Framework

if TYPE_CHECKING:
    from platoon_base.frameworks.checks import Check

_COMPILE = "import theano; x = theano.tensor.vector(); assert theano.function([x], theano.tensor.exp(x))([0.0]) == 1"
_LAST_PYTHON, _FIRST_NUMPY_WITHOUT = (3, 11), (1, 24)


def _checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    """Compile a function: Theano can often be imported where it cannot compile."""
    from importlib import metadata

    from platoon_base.frameworks.checks import SETUP, importable, installed

    numpy = metadata.version("numpy")
    unsuitable = tuple(map(int, numpy.split(".")[:2])) >= _FIRST_NUMPY_WITHOUT
    if sys.version_info[:2] > _LAST_PYTHON:
        remedy = f"Theano needs Python 3.11 or older: {SETUP} there, or make an environment for it as in docs/compat.md"
    elif unsuitable and not installed("theano", "").works:
        remedy = f"in a separate environment, with NumPy below 1.24: {SETUP}, or as in docs/compat.md"
    elif unsuitable:
        remedy = "pip install 'numpy<1.24', preferably in a separate environment"
    else:
        remedy = SETUP
    fails = f"cannot compile with NumPy {numpy}: it needs 1.23 or older" if unsuitable else "cannot compile"
    yield importable("Theano", "theano", remedy, _COMPILE, fails)


def _trains(frame: FrameType) -> bool:
    """Return whether this is the call of a compiled function that updates weights."""
    if frame.f_globals.get("__name__") != "theano.compile.function_module" or frame.f_code.co_name != "__call__":
        return False
    maker = getattr(frame.f_locals.get("self"), "maker", None)
    # States of random numbers are integers, and an evaluation sums its values in scalars.
    updated = [each.variable.type for each in getattr(maker, "inputs", ()) if getattr(each, "update", None) is not None]
    return any(getattr(kind, "ndim", 0) and kind.dtype.startswith("float") for kind in updated)


FRAMEWORK = Framework(
    preload=("scipy", "theano"),
    worth_preloading=("theano",),
    checks=_checks,
    distributions=("Theano", "pygpu"),
    variables=("THEANO",),
    trains=_trains,
)
