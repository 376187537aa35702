"""Helpers of loops of NumPy and JAX: values of all workers, and what one worker does for all."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from platoon_base.array_loops.loops import Loop, current, settle
from platoon_base.array_loops.trees import kind_of, on_host, tree_of
from platoon_base.errors import ConfigurationError
from platoon_base.job import connect
from platoon_base.job.once import print, write_once
from platoon_base.worker import Worker, gather_rows

__all__ = ["gather_for_metrics", "print", "save"]


def gather_for_metrics(values: Any, *, worker: Worker | None = None) -> Any:
    """Return the rows of all workers, in the order of a loader that does not shuffle.

    Parameters
    ----------
    values : array or number, or nested ones
        This worker's rows, such as predictions and labels of a batch of a prepared loader, or of
        all batches of the latest pass. Arrays may differ in their first dimension. A number, or an
        array without dimensions, is one row.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    like ``values``
        Arrays of NumPy with the rows of all workers that still take part, the same on every worker.
        A collective call.
    """
    settle()
    worker = connect() if worker is None else worker
    tree = tree_of(values)
    loop = current()
    return tree.rebuild([_gathered(leaf, worker, loop) for leaf in tree.leaves])


def _gathered(leaf: Any, worker: Worker, loop: Loop | None) -> Any:
    array = np.atleast_1d(on_host(leaf)) if kind_of(leaf) or isinstance(leaf, (int, float)) else None
    if array is None or array.dtype.kind not in "fiub":
        raise ConfigurationError(f"got {type(leaf).__name__}: gather_for_metrics takes arrays and numbers")
    if worker.global_size == 1:
        return array
    sent = array if array.dtype.kind == "f" else array.astype(np.uint8 if array.dtype.kind == "b" else np.int64)
    may_lose, sizes = (False, None) if loop is None else (loop.mode == "async", loop.sizes)
    return gather_rows(sent, worker, may_lose, sizes).astype(array.dtype)


def save(tree: Any, path: str | os.PathLike[str]) -> None:
    """Save nested arrays by `numpy.savez` on one worker, the one of `is_main`.

    Names are paths, such as "layers/0/kernel"; readers see the whole file or none.
    """
    found = tree_of(tree)
    arrays = {
        name or "values": on_host(leaf) for name, leaf in zip(found.names, found.leaves) if kind_of(leaf) in _SAVED
    }
    write_once(path, functools.partial(_write, arrays))


def _write(arrays: dict[str, Any], path: str) -> None:
    with open(path, "wb") as file:
        np.savez(file, **arrays)


_SAVED = ("f", "c", "i", "u", "b")
