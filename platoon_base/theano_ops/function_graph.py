"""The graph of a `function`: averaged updates, indexed resident data sets, and combined outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import theano
from theano.compile import SharedVariable
from theano.gof.graph import ancestors, inputs

from platoon_base.collectives.base import canonical_op
from platoon_base.dtypes import COLLECTIVE, Array
from platoon_base.errors import ConfigurationError
from platoon_base.frameworks.registered import such_as_parameters
from platoon_base.theano_ops.for_workers import vary_noise_once
from platoon_base.theano_ops.reductions import AllReduce, all_reduce
from platoon_base.worker.handle import Worker
from platoon_base.worker.initial_values import copy_first_values

REDUCTIONS = ("mean", "sum", "max", "min", "prod", "gather", None)

_BINARY = {"max": np.maximum, "min": np.minimum, "prod": np.multiply, None: lambda before, new: new}


def require_reductions(reduce: Any, count: int) -> list[str | None]:
    given = list(reduce) if isinstance(reduce, (list, tuple)) else [reduce] * count
    if len(given) != count:
        raise ConfigurationError(f"got {len(given)} reductions for {count} outputs: pass one for each, or one for all")
    return [_require_reduction(name) for name in given]


def _require_reduction(name: Any) -> str | None:
    if name is None or name == "gather":
        return name  # type: ignore[no-any-return]
    try:
        return canonical_op(name)
    except ConfigurationError:
        known = ", ".join(map(repr, REDUCTIONS))
        raise ConfigurationError(f"got reduce={name!r}: it must be one of {known}") from None


class Combined:
    """The values of one call, over the slices of this worker and then over all workers."""

    def __init__(self, reductions: Sequence[str | None]) -> None:
        self._reductions = list(reductions)
        self._values: list[Any] = [None] * len(self._reductions)
        self._dtypes: list[Any] = [None] * len(self._reductions)

    def add(self, values: Sequence[Any], rows: int, counted: bool) -> None:
        """Add the values of a slice, only for their shapes unless its rows are ``counted``."""
        for i, (reduction, value) in enumerate(zip(self._reductions, values)):
            value = np.asarray(value)
            self._dtypes[i] = value.dtype
            if reduction in ("mean", "sum"):
                factor = rows if reduction == "mean" else 1
                # A row that does not count may have a value that is not finite.
                self._add(i, value.astype(np.float64) * factor if counted else np.zeros(value.shape), np.add)
            elif reduction == "gather":
                if not value.ndim or len(value) != rows:
                    raise ConfigurationError(
                        f"got output {i} of shape {value.shape} from {rows} rows: a gathered "
                        'output must have one item for each row; use reduce="mean" or another '
                        "reduction"
                    )
                self._add(i, value if counted else value[:0], lambda before, new: np.concatenate([before, new]))
            else:
                self._add(i, value if counted else np.full_like(value, _identity(reduction, value)), _BINARY[reduction])

    def _add(self, i: int, value: Any, combine: Any) -> None:
        self._values[i] = value if self._values[i] is None else combine(self._values[i], value)

    def over(self, worker: Worker, counts: Sequence[int], timeout_s: float) -> list[Any]:
        """Return the values over all workers, whose numbers of rows are ``counts``."""
        self._sum(worker, sum(counts), timeout_s)
        for i, reduction in enumerate(self._reductions):
            value = self._values[i]
            if worker.global_size == 1 or reduction in ("mean", "sum", None):
                continue
            if reduction == "gather":
                self._values[i] = _gathered(worker, value, counts, timeout_s)
            else:
                self._values[i] = worker.all_reduce(np.array(value, order="C"), reduction, timeout_s=timeout_s)
        return self._values

    def _sum(self, worker: Worker, rows: int, timeout_s: float) -> None:
        """Add up means and sums over the workers: in one call, in float64, in rank order."""
        places = [i for i, reduction in enumerate(self._reductions) if reduction in ("mean", "sum")]
        if not places:
            return
        flat = np.concatenate([self._values[i].ravel() for i in places])
        if worker.global_size > 1:
            worker.all_reduce(flat, "sum", dest=flat, timeout_s=timeout_s)
        start = 0
        for i in places:
            shape, size, dtype = self._values[i].shape, self._values[i].size, self._dtypes[i]
            total = flat[start : start + size].reshape(shape)
            start += size
            if self._reductions[i] == "mean":
                with np.errstate(invalid="ignore", divide="ignore"):
                    total = total / rows
                dtype = dtype if dtype.kind == "f" else np.dtype(np.float64)
            elif dtype == np.bool_:
                dtype = np.dtype(np.int64)
            self._values[i] = np.asarray(total, dtype)


def _identity(reduction: str | None, like: Array) -> Any:
    """Return e with ``op(e, v) == v`` for every v of this dtype."""
    if reduction == "prod":
        return 1
    if reduction not in ("max", "min") or like.dtype.kind not in "fiu":
        # This worker's own value. all_reduce refuses other dtypes.
        return like
    if like.dtype.kind == "f":
        return -np.inf if reduction == "max" else np.inf
    return np.iinfo(like.dtype).min if reduction == "max" else np.iinfo(like.dtype).max


def _gathered(worker: Worker, value: Array, counts: Sequence[int], timeout_s: float) -> Array:
    """Concatenate the rows of all workers, which are padded with zeros to one length on the way."""
    padded = np.zeros((max(counts), *value.shape[1:]), value.dtype)
    padded[: len(value)] = value
    plain = padded.view(np.uint8) if padded.dtype == np.bool_ else padded
    found = worker.all_gather(plain, timeout_s=timeout_s).view(padded.dtype)
    return np.concatenate([rows[:count] for rows, count in zip(found, counts)])


def pairs_of(updates: Any) -> list[tuple[Any, Any]]:
    pairs = list(updates.items() if isinstance(updates, Mapping) else updates or ())
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], SharedVariable):
            raise ConfigurationError(
                f"got {pair!r} in updates: pass pairs of a shared variable and its new value, or a function of "
                "gradients and parameters that returns them, with params=[...]"
            )
    return [(variable, theano.tensor.as_tensor_variable(value)) for variable, value in pairs]


def averaged_grads(loss: Any, params: Any, weight: Any, average: bool, worker: Worker) -> list[Any]:
    """Return the gradients of a loss over the rows of all workers.

    ::

        g := sum_i n_i g_i / sum_i n_i     for a loss that is a mean over n_i rows
        g := sum_i g_i                     for a sum, if not ``average``
    """
    if not isinstance(loss, theano.Variable) or getattr(loss, "ndim", None) != 0:
        raise ConfigurationError(
            f"got {getattr(loss, 'type', loss)!r} as the loss: pass loss=, or make the first output a scalar, such as "
            "loss.mean()"
        )
    if not isinstance(params, Sequence) or not params:
        raise ConfigurationError(
            f"got params={params!r} for updates that are a function: pass the list of parameters{such_as_parameters()}"
        )
    grads: list[Any] = theano.grad(loss, list(params))
    if worker.global_size == 1:
        return grads
    # A worker without rows computes with a row of another one, which must not count twice.
    factor = weight if average else theano.tensor.gt(weight, 0)
    return all_reduce(*_weighted(grads, factor), op="mean" if average else "sum", worker=worker, compress=True)


def average_updates(
    pairs: Sequence[tuple[Any, Any]], outputs: Iterable[Any], weight: Any, worker: Worker
) -> list[tuple[Any, Any]]:
    """Return updates with v := sum_i n_i v_i / sum_i n_i, for floats that are not all-reduced yet.

    Running statistics, which are floats with a ``default_update``, are averaged too.
    """
    if worker.global_size == 1:
        return list(pairs)
    changed = {variable for variable, _ in pairs}
    used = inputs([*outputs, *(value for _, value in pairs)])
    pairs = [*pairs, *((v, v.default_update) for v in used if _is_statistic(v) and v not in changed)]
    chosen = [i for i, (variable, value) in enumerate(pairs) if _is_float(variable) and not _is_reduced(value)]
    if not chosen:
        return pairs
    # The variable's type: the expression may have a wider one, or be on another device.
    values = [pairs[i][0].type.filter_variable(theano.tensor.cast(pairs[i][1], pairs[i][0].dtype)) for i in chosen]
    means = all_reduce(*_weighted(values, weight), op="mean", worker=worker)
    for i, mean in zip(chosen, means):
        pairs[i] = pairs[i][0], mean
    return pairs


def with_default_updates(pairs: Sequence[tuple[Any, Any]], outputs: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return updates with the graph's default ones, so that all expressions can be changed."""
    # Otherwise a random stream would draw noise for the whole data set, not only for chosen rows.
    changed = {variable for variable, _ in pairs}
    used = inputs([*outputs, *(value for _, value in pairs)])
    more = [v for v in used if getattr(v, "default_update", None) is not None and v not in changed]
    return [*pairs, *((variable, variable.default_update) for variable in more)]


def with_givens(
    outputs: Sequence[Any], pairs: Sequence[tuple[Any, Any]], givens: Any
) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Substitute ``givens`` as `theano.function` does, so that data sets in them are found."""
    items = list(givens.items() if isinstance(givens, Mapping) else givens)
    if not all(isinstance(item, (tuple, list)) and len(item) == 2 and _is_variable(item[0]) for item in items):
        raise ConfigurationError(
            f"got givens={givens!r}: pass a mapping, or pairs, of a variable and its replacement, such as {{x: xs}}"
        )
    replace = [(old, new if _is_variable(new) else theano.shared(new)) for old, new in items]
    found = theano.clone([*outputs, *(value for _, value in pairs)], replace=replace, share_inputs=True)
    values = found[len(outputs) :]
    return found[: len(outputs)], [(variable, value) for (variable, _), value in zip(pairs, values)]


def indexed(expressions: Sequence[Any], data: Sequence[Any], index: Callable[[Any], Any]) -> list[Any]:
    """Return expressions with ``index(variable)`` in place of each resident data set."""
    if not data:
        return list(expressions)
    found: list[Any] = theano.clone(
        list(expressions), replace={variable: index(variable) for variable in data}, share_inputs=True
    )
    return found


def start_variables(
    expressions: Sequence[Any], updated: Sequence[Any], data: Sequence[Any], worker: Worker, timeout_s: float
) -> None:
    """Copy the first worker's values of a graph's variables to all, except data sets."""
    if worker.global_size == 1:
        return
    used = [v for v in inputs(list(expressions)) if isinstance(v, SharedVariable)]
    own = {id(variable.container) for variable in data}
    variables = []
    for variable in [*updated, *used]:
        # A clone, such as that of a running statistic, shares the memory of its original.
        if (
            id(variable.container) not in own
            and getattr(variable, "dtype", None) in COLLECTIVE
            and not _is_stream(variable)
        ):
            own.add(id(variable.container))
            variables.append(variable)
    if variables:
        copy_first_values(variables, worker, f"function of {len(expressions)} expressions", timeout_s=timeout_s)
    vary_noise_once(used, worker.global_rank)


def _weighted(values: Sequence[Any], weight: Any) -> list[Any]:
    return [value * theano.tensor.cast(weight, value.dtype) for value in values]


def _is_variable(value: Any) -> bool:
    return isinstance(value, theano.Variable)


def _is_float(variable: Any) -> bool:
    return getattr(variable, "dtype", None) in theano.tensor.float_dtypes


def _is_stream(variable: Any) -> bool:
    return bool(getattr(variable.tag, "is_rng", False))


def _is_statistic(variable: Any) -> bool:
    return getattr(variable, "default_update", None) is not None and _is_float(variable) and not _is_stream(variable)


def _is_reduced(value: Any) -> bool:
    return any(v.owner is not None and isinstance(v.owner.op, AllReduce) for v in ancestors([value]))
