"""The outputs of a `function`, combined over slices and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.collectives.base import canonical_op
from platoon_base.errors import ConfigurationError
from platoon_base.worker.handle import Worker

__all__ = ["REDUCTIONS", "Combined", "require_reductions"]

REDUCTIONS = ("mean", "sum", "max", "min", "prod", "gather", None)

_BINARY = {"max": np.maximum, "min": np.minimum, "prod": np.multiply, None: lambda before, new: new}

Array = np.ndarray[Any, Any]


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
