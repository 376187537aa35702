"""Search of Theano graphs for shared variables, moments of optimizers and running statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import theano
from theano.compile import SharedVariable
from theano.gof.graph import ancestors, inputs

from platoon_base.errors import ConfigurationError


def shared_variables(expressions: Iterable[Any]) -> list[Any]:
    graphs = [expression for expression in expressions if isinstance(expression, theano.Variable)]
    return [variable for variable in inputs(graphs) if isinstance(variable, SharedVariable)]


def find_moments(updates: Mapping[Any, Any], params: Iterable[Any], statistics: Iterable[Any]) -> list[Any]:
    """Return an optimizer's moments: state of a parameter's shape that only its update uses."""
    params = list(params)
    others = {*params, *statistics}
    states = {v for v in updates if v not in others and _is_float(v) and getattr(v, "default_update", None) is None}
    found: dict[Any, Any] = {}
    shared_by_several = set()
    for param in params:
        for state in states.intersection(ancestors([updates[param]])):
            if state in found:
                shared_by_several.add(state)
            found[state] = param
    return [
        state
        for state in updates
        if state in found
        and state not in shared_by_several
        and state.ndim
        and state.get_value(borrow=True).shape == found[state].get_value(borrow=True).shape
    ]


def find_statistics(used: Iterable[Any], given: Iterable[Any], params: Iterable[Any]) -> list[Any]:
    """Return the running statistics without duplicates: the given ones, then those of the graph."""
    given = list(given)
    for variable in given:
        if not _is_number(variable):
            raise ConfigurationError(
                f"got {variable!r} in statistics: pass shared variables of float or integer dtypes, such as "
                "lasagne.layers.get_all_params(network, batch_norm_stat=True)"
            )
    # Lasagne's BatchNormLayer sets a default_update on clones of its variables, on the same memory.
    found = [v for v in used if getattr(v, "default_update", None) is not None and _is_number(v)]
    known = {id(param.container) for param in params}
    return [v for v in [*given, *found] if not (id(v.container) in known or known.add(id(v.container)))]  # type: ignore[func-returns-value]


def _is_number(variable: Any) -> bool:
    """Return whether a variable is shared and holds numbers, not the state of a random stream."""
    if not isinstance(variable, SharedVariable) or getattr(variable.tag, "is_rng", False):
        return False
    return getattr(variable, "dtype", None) in theano.tensor.discrete_dtypes or _is_float(variable)


def _is_float(variable: Any) -> bool:
    return getattr(variable, "dtype", None) in theano.tensor.float_dtypes
