"""Graphs of one process adapted to N workers: moving averages, random numbers, learning rates."""

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
from theano.sandbox.rng_mrg import ff_2p134
from theano.tensor import float_dtypes

from platoon_base.errors import ConfigurationError
from platoon_base.job.joining import connect
from platoon_base.learning_rate import Warmup, scaled
from platoon_base.sharding import shard_seed
from platoon_base.worker import warn_once
from platoon_base.worker.handle import Worker

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


def vary_noise(shared_variables: Iterable[Any], rank: int) -> None:
    """Move the random streams among shared variables to numbers that no other rank draws."""
    if rank == 0:
        return
    for variable in shared_variables:
        value = variable.get_value()
        if isinstance(value, np.random.RandomState):
            value.seed(shard_seed(int(value.randint(2**31 - 1)), rank))
            variable.set_value(value)
        elif getattr(variable.tag, "is_rng", False):
            # This is a state of MRG31k3p. A user's integers may have the same shape.
            # Each rank is 2^134 numbers ahead of the previous one.
            rows = np.array(value)
            for row in rows:
                for _ in range(rank):
                    row[:] = ff_2p134(row)
            variable.set_value(rows)


def vary_noise_once(used: Iterable[Any], rank: int) -> None:
    """Call `vary_noise` for the random streams of a graph; a second call changes nothing."""
    fresh = [v for v in used if not getattr(v.tag, "varied_by_rank", False)]
    vary_noise(fresh, rank)
    for variable in fresh:
        if getattr(variable.tag, "is_rng", False) or isinstance(
            variable.get_value(borrow=True, return_internal_type=True), np.random.RandomState
        ):
            variable.tag.varied_by_rank = True


def scale_learning_rate(learning_rate: float, *, how: str = "linear", worker: Worker | None = None) -> float:
    """Scale a learning rate for averaged gradients: by the number of workers, or its square root.

    Parameters
    ----------
    learning_rate : float
        The learning rate of a single process with the batch size of one worker.
    how : {"linear", "sqrt", "none"}
        "linear" for SGD and momentum, "sqrt" for Adam and RMSProp; see
        `platoon_base.learning_rate.scale_factor`.
    worker : Worker, default ``connect()``

    Examples
    --------
    >>> rate = theano.shared(lasagne.utils.floatX(scale_learning_rate(0.1)))       # doctest: +SKIP
    >>> AllReduceGradients(Momentum(scale_learning_rate(0.1), 0.9))                # doctest: +SKIP
    """
    return scaled(learning_rate, (connect() if worker is None else worker).global_size, how)


class VariableWarmup:
    """A `Warmup` that sets a shared variable; ``advice`` for errors says which one to pass."""

    def __init__(
        self, variable: Any, warmup_epochs: float, how: str, worker: Worker | None, steps_per_epoch: Any, advice: str
    ) -> None:
        is_float = isinstance(variable, SharedVariable) and getattr(variable, "dtype", None) in float_dtypes
        if not is_float or getattr(variable, "ndim", None) != 0:
            raise ConfigurationError(f"got {variable!r} as learning_rate: pass {advice}")
        if not steps_per_epoch >= 1:
            raise ConfigurationError(
                f"got steps_per_epoch={steps_per_epoch!r}: it counts mini-batches and must be at least 1"
            )
        size = (connect() if worker is None else worker).global_size
        self._variable = variable
        self._warmup = Warmup(variable.get_value(), warmup_epochs, size, how)

    def set(self, epochs: float) -> None:
        rate = self._warmup.at(epochs)
        if rate is not None:
            self._variable.set_value(np.asarray(rate, self._variable.dtype))
