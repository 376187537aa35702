"""The original's rules between a worker's parameters and the center, and their base class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from platoon_base import rules
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import State

__all__ = ["ASGD", "EASGD", "ParamSyncRule", "is_user_defined", "require_params"]

_METHODS = {
    "make_update_function": "local_params",
    "theano_update": "local_params",
    "update_params": "local_values, master_values",
}


class ParamSyncRule(rules.Rule):
    """Base of user-defined rules: override `update_params`, or `theano_update`.

    Such a rule gets all parameters at once, so it runs under one lock for the whole center. An
    element-wise rule is faster as a `platoon_base.rules.Rule`.
    """

    def theano_update(self, local_params: list[Any]) -> Callable[..., Any]:
        """Return a compiled function of the center's values that returns their new values.

        The function's updates may change ``local_params``, the list of Theano shared variables.
        """
        raise NotImplementedError(f"{type(self).__name__} has no theano_update: override it, or update_params")

    def update_params(self, local_values: list[Array], master_values: list[Array]) -> None:
        """Change the values of this worker and those of the center, in place.

        Both are lists with one ndarray for each parameter, in the order of `init_shared_params`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no update_params: override it, or theano_update")

    def make_update_function(self, local_params: list[Any]) -> Callable[[list[Array]], object]:
        """Return a function that applies the rule once to the center's values, in place."""
        if _is_overridden(self, "theano_update"):
            return _by_theano(self.theano_update(local_params), type(self).__name__)
        if self.kernel is not None and not _is_overridden(self, "update_params"):
            function = _BySync(self, local_params)
            vars(self).setdefault("_functions", []).append(function)
            return function

        def update(master_values: list[Array]) -> None:
            local_values = [_value(param) for param in local_params]
            self.update_params(local_values, master_values)
            for param, value in zip(local_params, local_values):
                _set_value(param, value)

        return update

    def took_center_over(self) -> None:
        """Reset the worker's states, after the center was copied to the parameters."""
        for function in vars(self).get("_functions", []):
            function.restart()

    def require_signatures(self) -> None:
        """Raise `ConfigurationError` unless each method takes the arguments of the base class."""
        for name, arguments in _METHODS.items():
            method = getattr(self, name)
            try:
                inspect.signature(method).bind(*arguments.split(", "))
            except TypeError as exc:
                raise ConfigurationError(
                    f"got a rule with {type(self).__name__}.{name}{inspect.signature(method)}, "
                    f"which is called as {name}({arguments}): {exc}; define it with these "
                    "arguments"
                ) from exc

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        """Raise: a user-defined rule does not run element by element."""
        raise NotImplementedError(f"{type(self).__name__} runs on all parameters at once: see make_update_function")


class EASGD(ParamSyncRule):
    """Elastic averaging; see `platoon_base.rules.EASGD` for the equations.

    `set_alpha` changes ``alpha``, in (0, 1], for the next synchronization.
    """

    kernel = "easgd"
    form = rules.EASGD.form

    def __init__(self, alpha: float) -> None:
        self._rule = rules.EASGD(alpha)

    def get_alpha(self) -> float:
        """Return the strength of the spring."""
        return self.kernel_args()[0]

    def set_alpha(self, alpha: float) -> None:
        """Change the strength of the spring."""
        self._rule = rules.EASGD(alpha)

    @property
    def alpha(self) -> float:
        """The strength of the spring."""
        return self.get_alpha()

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        self.set_alpha(alpha)

    def kernel_args(self) -> tuple[float, ...]:
        """Return ``(alpha,)``."""
        return self._rule.kernel_args()

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        """Apply the equations in place."""
        self._rule.sync(local, center, local_state, center_state)

    def __repr__(self) -> str:
        return f"EASGD(alpha={self.get_alpha():g})"


class ASGD(ParamSyncRule):
    """Asynchronous SGD, as in Downpour; see `platoon_base.rules.ASGD` for the equations."""

    kernel = "asgd"
    local_state = rules.ASGD.local_state
    form = rules.ASGD.form

    def sync(self, local: Array, center: Array, local_state: State = (), center_state: State = ()) -> None:
        """Apply the equations in place; ``local_state = (x_old,)``."""
        rules.ASGD().sync(local, center, local_state, center_state)

    def __repr__(self) -> str:
        return "ASGD()"


def require_params(params: Any) -> list[Any]:
    if hasattr(params, "get_value") or isinstance(params, (np.ndarray, str)) or not isinstance(params, Iterable):
        raise ConfigurationError(f"got {params!r} as params: pass a list of shared variables, such as [w, b]")
    return list(params)


def is_user_defined(rule: Any) -> bool:
    """Return whether a rule overrides a method of `ParamSyncRule`, which replaces the kernel."""
    if not isinstance(rule, ParamSyncRule):
        return False
    return rule.kernel is None or any(_is_overridden(rule, name) for name in _METHODS)


def _is_overridden(rule: ParamSyncRule, name: str) -> bool:
    return getattr(type(rule), name) is not getattr(ParamSyncRule, name)


def _value(param: Any) -> Array:
    return np.array(param if isinstance(param, np.ndarray) else param.get_value())


def _set_value(param: Any, value: Array) -> None:
    if isinstance(param, np.ndarray):
        param[...] = value
    else:
        param.set_value(value)


class _BySync:
    def __init__(self, rule: ParamSyncRule, local_params: list[Any]) -> None:
        self._rule, self._params = rule, local_params
        self.restart()

    def restart(self) -> None:
        self._states = [tuple(_value(p) for _ in self._rule.local_state) for p in self._params]

    def __call__(self, master_values: list[Array]) -> None:
        local_values = [_value(param) for param in self._params]
        for local, master, states in zip(local_values, master_values, self._states):
            self._rule.sync(local, master, states)
        for param, value in zip(self._params, local_values):
            _set_value(param, value)


def _by_theano(function: Any, name: str) -> Callable[[list[Array]], object]:
    if not callable(function):
        raise ConfigurationError(
            f"{name}.theano_update returned {function!r}: return a compiled function, theano.function(masters, "
            "new_masters, updates=...)"
        )

    def update(master_values: list[Array]) -> None:
        try:
            new: Any = function(*master_values)
        except TypeError as exc:
            raise ConfigurationError(
                f"the function of {name}.theano_update cannot be called with the center's values, "
                f"{', '.join(f'{value.dtype}{list(value.shape)}' for value in master_values)}: "
                f"{exc}; it needs one input for each parameter, in their order and of their types"
            ) from exc
        values: Sequence[Any] = new if isinstance(new, (list, tuple)) else [new]
        shapes, wanted = [np.shape(value) for value in values], [value.shape for value in master_values]
        if shapes != wanted:
            raise ConfigurationError(
                f"the function of {name}.theano_update returned values of shapes {shapes}, and "
                f"the parameters have {wanted}: return the center's new values, one for each "
                "parameter, in their order"
            )
        for master, value in zip(master_values, values):
            master[...] = np.asarray(value)

    return update
