"""The collective operations of the original Platoon, inside compiled functions."""

from __future__ import annotations

from typing import Any

from platoon_base.dtypes import COLLECTIVE
from platoon_base.errors import ConfigurationError
from platoon_base.platoon_api.arguments import handle_of
from platoon_base.theano_ops.reductions import all_reduce

__all__ = ["AllReduceMax", "AllReduceMin", "AllReduceProd", "AllReduceSum"]


def AllReduceSum(src: Any, dest: Any = None, inplace: bool = False, worker: Any = None) -> Any:  # noqa: N802
    """Sum a variable over all workers. ``dest`` only sets the result's type, which is checked."""
    return _all_reduce(src, "sum", dest, inplace, worker)


def AllReduceProd(src: Any, dest: Any = None, inplace: bool = False, worker: Any = None) -> Any:  # noqa: N802
    return _all_reduce(src, "prod", dest, inplace, worker)


def AllReduceMax(src: Any, dest: Any = None, inplace: bool = False, worker: Any = None) -> Any:  # noqa: N802
    return _all_reduce(src, "max", dest, inplace, worker)


def AllReduceMin(src: Any, dest: Any = None, inplace: bool = False, worker: Any = None) -> Any:  # noqa: N802
    return _all_reduce(src, "min", dest, inplace, worker)


class VariableTypeError(ConfigurationError, TypeError):
    """A variable of the wrong type; a `TypeError`, as in the original."""


def _all_reduce(src: Any, op: str, dest: Any, inplace: bool, worker: Any) -> Any:
    if getattr(src, "dtype", None) not in COLLECTIVE:
        raise VariableTypeError(
            f"got {src!r} of dtype {getattr(src, 'dtype', None)}: workers combine Theano variables of "
            f"{', '.join(COLLECTIVE)}; cast it"
        )
    if dest is not None and (dest.dtype, dest.ndim) != (src.dtype, src.ndim):
        raise VariableTypeError(
            f"got dest of type {dest.type} for src of type {src.type}: the result has the type of "
            "src; cast dest, or leave it out"
        )
    (result,) = all_reduce(src, op=op, worker=handle_of(worker), inplace=inplace)
    return result
