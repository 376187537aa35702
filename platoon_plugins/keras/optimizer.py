"""Synchronous training: any optimizer, fed with gradients that are averaged over the workers."""

from __future__ import annotations

from typing import Any

import keras

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_plugins.keras import backends
from platoon_plugins.keras.gradients import GradientAverage

__all__ = ["DistributedOptimizer", "average_of"]


def DistributedOptimizer(optimizer: Any, *, worker: Worker | None = None) -> Any:  # noqa: N802 - Horovod's name
    """Make an optimizer average its gradients over all workers, before clipping and its own arithmetic.

    ::

        g := sum_i w_i g_i / sum_i w_i

    where w_i is what the loss of worker i is divided by, such as the number of its rows, or of its tokens that are not
    masked. Of losses that are sums, g is the sum. N workers with mini-batches of B rows train as one process does on
    mini-batches of N B rows. Of a loss function that returns one number for a batch w_i is the number of rows, with a
    warning; for a ``train_step`` that does not call ``compute_loss`` all w_i are 1. Each step is one collective call,
    so the workers wait for one another; if one has fewer batches in an epoch, the others go on without it, and it
    takes their weights over at the epoch's end. Pass ``callbacks=distribute([...])`` to ``fit``: that gives all
    workers the same initial weights. In a loop of your own over ``train_on_batch``, call `broadcast_variables` before
    it and after each ``fit``, and make as many steps on each worker.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer or str
        As ``compile`` takes it. It is changed in place, and keeps its class name: a saved model loads without this
        package. A LossScaleOptimizer is passed here, not put around what is returned.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    keras.optimizers.Optimizer
        The same object; in a job of one it is unchanged.

    Raises
    ------
    ConfigurationError
        If it is no optimizer, or distributed already.

    References
    ----------
    Das et al.: Distributed deep learning using synchronous stochastic gradient descent, arXiv 1602.06709.
    """
    optimizer = keras.optimizers.get(optimizer) if isinstance(optimizer, str) else optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            f"got {optimizer!r}: pass an optimizer of Keras or its name, such as keras.optimizers.SGD(0.1)"
        )
    if average_of(optimizer) is not None:
        raise ConfigurationError("got an optimizer that is distributed already: wrap it once")
    worker = connect() if worker is None else worker
    if worker.global_size == 1:
        return optimizer
    backend, base = backends.current(), type(optimizer)
    average = backend.average(worker)
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    methods = backend.apply_of(base, average)
    optimizer.__class__ = type(base.__name__, (base,), {**names, **methods, "gradient_average": average})
    return optimizer


def average_of(optimizer: Any) -> GradientAverage | None:
    """Return what averages an optimizer's gradients, or None if it is not distributed."""
    found: GradientAverage | None = getattr(type(optimizer), "gradient_average", None)
    return found
