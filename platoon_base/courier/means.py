"""Means of the copies of several hosts' centers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["is_finite", "weighted_mean"]

Array = np.ndarray[Any, Any]


def weighted_mean(copies: Sequence[Sequence[Array]], weights: Sequence[float]) -> list[Array]:
    """Return the mean of several hosts' copies, array by array; half-precision numbers are added in float32."""
    total = sum(weights)
    means = []
    for arrays in zip(*copies):
        dtype = arrays[0].dtype
        wide = np.dtype("f4") if dtype.itemsize < 4 else dtype
        mean = arrays[0].astype(wide) * wide.type(weights[0] / total)
        for array, weight in zip(arrays[1:], weights[1:]):
            mean += array.astype(wide, copy=False) * wide.type(weight / total)
        means.append(mean.astype(dtype, copy=False))
    return means


def is_finite(array: Array) -> bool:
    """Tell whether all numbers are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum(dtype="f4" if array.dtype.itemsize < 4 else array.dtype)  # faster than to ask each
        return bool(np.isfinite(total)) or bool(np.isfinite(array).all())
