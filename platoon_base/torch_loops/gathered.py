"""Helpers of prepared loops: values of all workers, and what one worker does for all."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from platoon_base.errors import ConfigurationError
from platoon_base.job import connect
from platoon_base.job.once import write_once
from platoon_base.torch_loops.loops import AsyncLoop, current
from platoon_base.torch_loops.state import TensorValue
from platoon_base.worker import Worker, gather_rows


def gather_for_metrics(values: Any, *, worker: Worker | None = None) -> Any:
    """Return the rows of all workers, in the order of a loader that does not shuffle.

    Parameters
    ----------
    values : torch.Tensor or number, or nested lists, tuples and dicts of them
        This worker's rows, such as predictions and labels of a batch of a prepared loader, or of
        all batches of the latest pass. Tensors may differ in their first dimension. A number, or a
        tensor without dimensions, is one row.
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
    loop = current()
    rows = gather_rows(value, worker, isinstance(loop, AsyncLoop), None if loop is None else loop.sizes)
    found = tensor.new_empty((len(rows), *tensor.shape[1:]))
    TensorValue("values", found).set_value(rows)
    return found


def save(value: Any, path: str | os.PathLike[str]) -> None:
    """Do ``torch.save`` on one worker, the one of `is_main`; readers see the whole file or none."""
    write_once(path, functools.partial(torch.save, value))
