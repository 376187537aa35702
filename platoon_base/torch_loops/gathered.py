"""Helpers of prepared loops: values of all workers, and what one worker does for all."""

from __future__ import annotations

import builtins
import os
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from platoon_base.errors import ConfigurationError
from platoon_base.job import connect
from platoon_base.job.joining import is_main
from platoon_base.torch_loops.loops import AsyncLoop, current
from platoon_base.torch_loops.state import TensorValue
from platoon_base.worker import Worker

__all__ = ["gather_for_metrics", "print", "save"]


def gather_for_metrics(values: Any, *, worker: Worker | None = None) -> Any:
    """Return the rows of all workers, in the order of a loader that does not shuffle.

    Parameters
    ----------
    values : torch.Tensor or number, or nested lists, tuples and dicts of them
        This worker's rows, such as predictions and labels of a batch of a prepared loader. Tensors
        may differ in their first dimension. A number, or a tensor without dimensions, is one row.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    like ``values``
        Tensors with the rows of all workers that still take part, one after the other, the same on
        every worker. A collective call.
    """
    worker = connect() if worker is None else worker
    return _pytree.tree_map(lambda leaf: _gathered(leaf, worker), values)


def _gathered(leaf: Any, worker: Worker) -> Any:
    if not isinstance(leaf, (torch.Tensor, np.ndarray, np.generic, int, float)):
        raise ConfigurationError(f"got {type(leaf).__name__}: gather_for_metrics takes tensors and numbers")
    tensor = torch.atleast_1d(torch.as_tensor(leaf).detach())
    if worker.global_size == 1:
        return tensor
    value = TensorValue("values", tensor).get_value(borrow=True)
    sizes = worker.gather([worker.global_rank, *map(int, value.shape)], name="rows of metrics")
    ranks, most = [size[0] for size in sizes], max(size[1] for size in sizes)
    if any(size[2:] != sizes[0][2:] for size in sizes):
        raise ConfigurationError(
            f"got shapes {[tuple(size[1:]) for size in sizes]}: only the numbers of rows may differ"
        )
    padded = np.zeros((most, *value.shape[1:]), value.dtype)
    padded[: len(value)] = value
    if isinstance(current(), AsyncLoop):  # Workers may have been lost.
        mine = np.zeros((worker.global_size, *padded.shape), np.float64)
        mine[worker.global_rank] = padded
        stacked = worker.advanced.sum_arrays("metrics", [mine]).arrays[0].astype(value.dtype)
    else:
        stacked = worker.all_gather(padded)
    rows = np.concatenate([stacked[rank][: size[1]] for rank, size in zip(ranks, sizes)])
    found = tensor.new_empty((len(rows), *tensor.shape[1:]))
    TensorValue("values", found).set_value(rows)
    return found


def print(*values: Any, **options: Any) -> None:
    """Print on one worker, the one of `is_main`."""
    if is_main():
        builtins.print(*values, **options)


def save(value: Any, path: str | os.PathLike[str]) -> None:
    """Do ``torch.save`` on one worker, the one of `is_main`; readers see the whole file or none."""
    if is_main():
        part = f"{os.fspath(path)}.{os.getpid()}.part"
        try:
            torch.save(value, part)
            os.replace(part, path)
        finally:
            if os.path.exists(part):
                os.remove(part)
