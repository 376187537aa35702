"""Small arrays of any shapes from each worker to all, through the controller, so that it survives deaths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base import Worker
from platoon_base.errors import ConfigurationError

__all__ = ["gather"]

Array = np.ndarray[Any, Any]


def gather(
    worker: Worker, name: str, arrays: Sequence[Any], ranks: Sequence[int], *, timeout_s: float
) -> tuple[list[list[Array]], list[int]]:
    """Exchange arrays of real dtypes, as many and of such shapes as each worker likes.

    They travel as float64, in which integers beyond 2^53 are rounded.

    A collective call of ``ranks``; what each passes is added to the zeros of the others.

    Returns
    -------
    rows : list of list of ndarray, float64
        For each of ``ranks`` its arrays, the same bits on every worker; none if somebody was lost on the way.
    ranks : list of int
        Who took part: ``ranks``, or those that are left of them.
    """
    packed = _pack(arrays)
    mine = list(ranks).index(worker.global_rank)
    lengths = np.zeros(len(ranks))
    lengths[mine] = len(packed)
    summed = worker.sum_arrays(f"{name}, lengths", [lengths], timeout_s=timeout_s)
    if summed.ranks != list(ranks):
        return [], summed.ranks
    ends = np.cumsum(summed.arrays[0]).astype(int)
    everything = np.zeros(ends[-1])
    everything[ends[mine] - len(packed) : ends[mine]] = packed
    summed = worker.sum_arrays(name, [everything], timeout_s=timeout_s)
    if summed.ranks != list(ranks):
        return [], summed.ranks
    return [_unpack(row) for row in np.split(summed.arrays[0], ends[:-1])], summed.ranks


def _pack(arrays: Sequence[Any]) -> Array:
    """Write number, shapes and values one behind the other, all of them as float64."""
    taken = [np.asarray(array) for array in arrays]
    for array in taken:
        if array.dtype.kind not in "biuf":
            raise ConfigurationError(
                f"got a value of dtype {array.dtype}: workers put together real numbers; monitor its real and "
                "imaginary parts, or its absolute value"
            )
    head = [len(taken), *(number for array in taken for number in (array.ndim, *array.shape))]
    return np.concatenate([np.array(head, np.float64), *(array.ravel().astype(np.float64) for array in taken)])


def _unpack(row: Array) -> list[Array]:
    count, at, shapes = int(row[0]), 1, []
    for _ in range(count):
        ndim = int(row[at])
        shapes.append(tuple(int(n) for n in row[at + 1 : at + 1 + ndim]))
        at += 1 + ndim
    found = []
    for shape in shapes:
        size = math.prod(shape)
        found.append(row[at : at + size].reshape(shape))
        at += size
    return found
