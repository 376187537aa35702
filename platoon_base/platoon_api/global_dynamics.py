"""Synchronous rules on Theano shared variables, under the names of the original Platoon.

The equations are those of `platoon_base.rules.synchronous`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import theano
from theano import tensor

from platoon_base import rules
from platoon_base.errors import ConfigurationError, PlatoonWarning
from platoon_base.parameters import Parameters
from platoon_base.platoon_api.arguments import handle_of
from platoon_base.rules.synchronous import require_alike
from platoon_base.theano_ops import all_reduce
from platoon_base.worker.initial_values import require_same_layout, start_together

__all__ = ["EASGD", "SGD", "AverageSGD", "Downpour", "GlobalDynamics", "SumSGD"]


class GlobalDynamics:
    """A step that all workers take together."""

    def __init__(self, worker: Any = None) -> None:
        self.worker = handle_of(worker)
        self.function: Callable[[], Any] | None = None

    def make_rule(self, *args: Any) -> None:
        """Compile the rule, and call `register_fn`; subclasses define the arguments."""
        raise NotImplementedError(f"{type(self).__name__} has no rule: call register_fn, or use a subclass")

    def register_fn(self, fun: Callable[[], Any]) -> None:
        if not callable(fun):
            raise ConfigurationError(
                f"got {fun!r}: pass a function without arguments, such as theano.function([], ...)"
            )
        self.function = fun

    def __call__(self) -> Any:
        if self.function is None:
            raise ConfigurationError(f"{type(self).__name__} has no rule yet: call make_rule, or register_fn, first")
        return self.function()

    def _all_reduce(self, variables: list[Any], average: bool) -> list[Any]:
        return all_reduce(*variables, op="mean" if average else "sum", worker=self.worker)


class SGD(GlobalDynamics):
    """Replace updates by u := sum_i u_i, or 1/N sum_i u_i, over all workers."""

    def __init__(self, average: bool = False, worker: Any = None) -> None:
        super().__init__(worker)
        self.average = average

    def make_rule(self, local_updates: Any) -> None:
        """Compile the rule for shared variables of float dtypes, which are u_i before each step."""
        updates = _shared_variables(local_updates, "local_updates")
        if self.worker.global_size > 1:
            require_same_layout(Parameters(updates).layout, self.worker, f"SGD(average={self.average})")
        reduced = self._all_reduce(updates, self.average)
        self.register_fn(theano.function([], updates=list(zip(updates, reduced))))


class SumSGD(SGD):
    def __init__(self, worker: Any = None) -> None:
        super().__init__(average=False, worker=worker)


class AverageSGD(SGD):
    def __init__(self, worker: Any = None) -> None:
        super().__init__(average=True, worker=worker)


class EASGD(GlobalDynamics):
    """Synchronous elastic averaging; for equations see `platoon_base.rules.synchronous.easgd`."""

    _alpha: Any = None

    def make_rule(self, local_particle: Any, central_particle: Any, alpha: Any) -> None:
        """Compile the rule for x_i and this worker's replica of c, which starts as rank 0's."""
        local = _shared_variables(local_particle, "local_particle")
        center = _shared_variables(central_particle, "central_particle")
        _require_alike(local_particle=local, central_particle=center)
        shared = hasattr(alpha, "get_value")
        self._require_alpha(float(alpha.get_value()) if shared else alpha)
        self._alpha = alpha if shared else theano.shared(float(alpha), name="alpha")
        start_together(center, self.worker, "EASGD")
        d = [tensor.cast(self._alpha, x.dtype) * (x - c) for x, c in zip(local, center)]
        totals = self._all_reduce(d, average=False)
        updates = [(x, x - elastic) for x, elastic in zip(local, d)]
        updates += [(c, c + total) for c, total in zip(center, totals)]
        self.register_fn(theano.function([], updates=updates))

    @property
    def alpha(self) -> float:
        """The strength of a spring, used from the next step; all workers need the same."""
        if self._alpha is None:
            raise ConfigurationError("alpha is unknown: call make_rule first")
        return float(self._alpha.get_value())

    @alpha.setter
    def alpha(self, value: float) -> None:
        if self._alpha is None:
            raise ConfigurationError("there is no rule yet: pass alpha to make_rule")
        self._require_alpha(value)
        self._alpha.set_value(value)

    def _require_alpha(self, alpha: Any) -> None:
        (value,) = rules.EASGD(alpha).kernel_args()
        size = self.worker.global_size
        if size > 1 and value >= 2 / (size + 1):
            warnings.warn(
                f"alpha={value:g} with {size} workers at the same time: from 2 / (N + 1) = "
                f"{2 / (size + 1):g} upwards, workers and center diverge; use 0.9 / N = "
                f"{0.9 / size:g}",
                PlatoonWarning,
                stacklevel=3,
            )


class Downpour(GlobalDynamics):
    """Synchronous Downpour; for equations see `platoon_base.rules.synchronous.downpour`."""

    def __init__(self, average: bool = False, worker: Any = None) -> None:
        super().__init__(worker)
        self.average = average

    def make_rule(self, local_particle: Any, local_acc_updates: Any, global_particle: Any) -> None:
        """Compile the rule for x_i, u_i and the replica of c, which starts as rank 0's."""
        local = _shared_variables(local_particle, "local_particle")
        accumulated = _shared_variables(local_acc_updates, "local_acc_updates")
        center = _shared_variables(global_particle, "global_particle")
        _require_alike(local_particle=local, local_acc_updates=accumulated, global_particle=center)
        start_together(center, self.worker, f"Downpour(average={self.average})")
        moved = [c + g for c, g in zip(center, self._all_reduce(accumulated, self.average))]
        updates = [*zip(center, moved), *zip(local, moved), *((u, tensor.zeros_like(u)) for u in accumulated)]
        self.register_fn(theano.function([], updates=updates))


def _shared_variables(given: Any, name: str) -> list[Any]:
    variables = list(given) if isinstance(given, (list, tuple)) else [given]
    for variable in variables:
        if not isinstance(variable, theano.compile.SharedVariable):
            raise ConfigurationError(
                f"got {type(variable).__name__} in {name}: a rule changes shared variables; pass one, or a list of them"
            )
    if not variables:
        raise ConfigurationError(f"got no variable as {name}: pass a shared variable, or a list of them")
    return variables


def _require_alike(**lists: list[Any]) -> None:
    """Raise unless the variables have the same shapes and dtypes, and no variable appears twice."""
    require_alike(**{name: [v.get_value(borrow=True) for v in variables] for name, variables in lists.items()})
    everything = [variable for variables in lists.values() for variable in variables]
    Parameters(everything)
