"""What synchronous training needs before its first step: the same model, with the same values, on every worker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from platoon_base.errors import LayoutMismatchError
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.parameters import Parameters
from platoon_base.system.text import to_bytes
from platoon_base.worker.handle import Worker

__all__ = ["require_same_layout", "start_together"]


def start_together(params: Iterable[Any], worker: Worker, purpose: str = "") -> Layout:
    """Give the values of the first worker's parameters to all others, bit by bit.

    All workers call it, at the same point of their scripts; in a job of one nothing happens.

    Parameters
    ----------
    params : list of Theano shared variable, GpuArray or ndarray
        Of float dtypes; the same number, order, names, shapes and dtypes on every worker.
    worker : Worker
    purpose : str
        What else must be the same on all workers, such as the rule and its options.

    Returns
    -------
    Layout
        That of the parameters.

    Raises
    ------
    ConfigurationError
        If something in the arguments cannot work.
    LayoutMismatchError
        On every worker, before anything is changed, if the parameters of one are others, or its purpose is.
    WorkerLostError, CollectiveTimeoutError
        If a worker does not come.
    """
    parameters = Parameters(params)
    if worker.global_size > 1:
        require_same_layout(parameters.layout, worker, purpose)
        values = parameters.borrow()
        worker.broadcast(values)
        parameters.give_back(values)
    return parameters.layout


def require_same_layout(layout: Layout, worker: Worker, purpose: str = "") -> None:
    """Raise `LayoutMismatchError` on every worker unless all have the same layout and purpose; all workers call it.

    As long as they agree, it costs one collective call on 32 bytes.
    """
    fingerprint = hashlib.sha256(layout.fingerprint + to_bytes(purpose)).digest()
    prints = worker.all_gather(np.frombuffer(fingerprint, np.uint8))
    if (prints == prints[0]).all():
        return
    for place, (other, wanted) in enumerate(_exchange(layout, purpose, worker)):
        layout.require_same(other, whose=f"worker {place}'s")
        if purpose != wanted:
            raise LayoutMismatchError(
                f"got {purpose}, worker {place} has {wanted}: what they compute would not go together; call "
                "it with the same arguments on every worker"
            )


def _exchange(layout: Layout, purpose: str, worker: Worker) -> Iterator[tuple[Layout, str]]:
    """Tell one another what the fingerprints stand for, so that the error can name the difference."""
    text = np.frombuffer(json.dumps([purpose, layout.specs]).encode(), np.uint8)
    lengths = worker.all_gather(np.array([text.size]))[:, 0]
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: text.size] = text
    for row, length in zip(worker.all_gather(padded), lengths):
        wanted, specs = json.loads(row[:length].tobytes())
        yield Layout(tuple(ParameterSpec(name, tuple(shape), dtype) for name, shape, dtype in specs)), wanted
