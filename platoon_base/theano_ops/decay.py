"""Moving averages in Theano graphs, whose decay on N workers becomes that of one process."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import theano
import theano.tensor as T  # noqa: N812 - Theano's own idiom
from theano.compile import SharedVariable
from theano.gof.graph import inputs, io_toposort

from platoon_base.worker import warn_once

__all__ = ["decay_as_one_process", "decay_defaults", "decay_of"]

log = logging.getLogger(__name__)


def decay_as_one_process(pairs: Iterable[tuple[Any, Any]], workers: int) -> list[tuple[Any, Any]]:
    """Return updates for which each step of ``workers`` workers counts as N steps of one process.

    ::

        v := m v + b                                        the given update
        v := v + (m v + b - v) (1 - m^N) / (1 - m)          returned: N times the same b

    A moving average with b = (1 - m) x then decays by m^N. Updates with m = 0 or m = 1 are
    unchanged. So are updates of another form, with a warning. In updates that this function has
    returned before, N is replaced.
    """
    result, unknown, decays = [], [], set()
    for variable, update in pairs:
        numbers = [v for v in inputs([update]) if getattr(v.tag, "number_of_workers", False)]
        for number in numbers:
            number.set_value(np.asarray(workers, number.dtype))
        # Integers are counters.
        decays_not = numbers or workers == 1 or variable.dtype not in T.float_dtypes
        decay = 0.0 if decays_not else decay_of(update, variable)
        if decay is None:
            unknown.append(str(variable))
        elif not isinstance(decay, float):
            decays.add("a decay that is a variable")
        elif 0 < decay < 1:
            decays.add(f"{decay:.4g}")
        if decay is not None and not (isinstance(decay, float) and decay in (0.0, 1.0)):
            number = theano.shared(np.asarray(workers, variable.dtype), "number of workers")
            number.tag.number_of_workers = True
            repeated = variable + (update - variable) * T.switch(
                T.eq(decay, 1), number, (1 - decay**number) / (1 - decay)
            )
            update = T.cast(repeated, variable.dtype)
        result.append((variable, update))
    if decays:
        log.info(
            "moving statistics decay with the %d-th power of %s in each step, because each of "
            "the %d workers makes that many times fewer steps in an epoch",
            workers,
            ", ".join(sorted(decays)),
            workers,
        )
    if unknown:
        warn_once(
            f"got updates of the statistics {', '.join(unknown)} that are not moving averages "
            "with a constant decay, m v + (1 - m) x. They count the steps of one worker, and an "
            f"epoch has {workers} times fewer of these than with one process. Write the update "
            "for as many steps of one process, unless older values may have more weight"
        )
    return result


def decay_defaults(variables: Iterable[Any], workers: int) -> None:
    """Change the default updates of variables as `decay_as_one_process` does."""
    changed = [variable for variable in variables if getattr(variable, "default_update", None) is not None]
    for variable, update in decay_as_one_process([(v, v.default_update) for v in changed], workers):
        variable.default_update = update


def decay_of(update: Any, variable: Any) -> Any:
    """Return the m of ``m v + b``, a number or an expression of shared scalars; None otherwise."""
    depends = {variable}
    for node in io_toposort([variable], [update]):
        if not depends.isdisjoint(node.inputs):
            depends.update(node.outputs)
    try:
        return _coefficient(update, variable, depends)
    except _NotLinearError:
        return None


class _NotLinearError(Exception):
    pass


def _coefficient(expression: Any, variable: Any, depends: set[Any]) -> Any:
    if expression is variable:
        return 1.0
    if expression not in depends:
        return 0.0
    node = expression.owner
    operation = type(getattr(node.op, "scalar_op", node.op))
    if operation.__name__ in _SAME_VALUES:
        return _coefficient(node.inputs[0], variable, depends)
    if operation is theano.scalar.Neg:
        return -_coefficient(node.inputs[0], variable, depends)
    if operation in (theano.scalar.Add, theano.scalar.Sub):
        first, *others = (_coefficient(each, variable, depends) for each in node.inputs)
        return first + sum(others) if operation is theano.scalar.Add else first - others[0]
    at = [i for i, each in enumerate(node.inputs) if each in depends]
    if operation is theano.scalar.TrueDiv and at == [0]:
        return _coefficient(node.inputs[0], variable, depends) / _scalar(node.inputs[1])
    if operation is theano.scalar.Mul and len(at) == 1:
        factors = [_scalar(each) for i, each in enumerate(node.inputs) if i != at[0]]
        return functools.reduce(operator.mul, factors, _coefficient(node.inputs[at[0]], variable, depends))
    raise _NotLinearError


def _scalar(factor: Any) -> Any:
    try:
        return float(T.get_scalar_constant_value(factor))
    except T.NotScalarConstantError:
        pass
    if any(v.ndim or not isinstance(v, (theano.Constant, SharedVariable)) for v in inputs([factor])):
        raise _NotLinearError
    return factor.dimshuffle(()) if factor.ndim else factor


# Operations that only change the place or the type of a value.
_SAME_VALUES = {"DimShuffle", "Cast", "Rebroadcast", "GpuDimShuffle", "GpuFromHost", "HostFromGpu", "GpuToGpu"}
