"""Learning rates of N workers in Theano's shared variables, for the adapters of its frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
from theano.compile import SharedVariable
from theano.tensor import float_dtypes

from platoon_base.errors import ConfigurationError
from platoon_base.job.joining import connect
from platoon_base.learning_rate import Warmup, scaled
from platoon_base.worker.handle import Worker

__all__ = ["VariableWarmup", "scale_learning_rate"]


def scale_learning_rate(learning_rate: float, *, how: str = "linear", worker: Worker | None = None) -> float:
    """Scale a learning rate for averaged gradients: by the number of workers, or its square root.

    Parameters
    ----------
    learning_rate : float
        The learning rate of a single process with the batch size of one worker.
    how : {"linear", "sqrt", "none"}
        "linear" for SGD and momentum, "sqrt" for Adam and RMSProp; see
        `platoon_base.learning_rate.scale_factor`.
    worker : Worker, default ``connect()``

    Examples
    --------
    >>> rate = theano.shared(lasagne.utils.floatX(scale_learning_rate(0.1)))       # doctest: +SKIP
    >>> AllReduceGradients(Momentum(scale_learning_rate(0.1), 0.9))                # doctest: +SKIP
    """
    return scaled(learning_rate, (connect() if worker is None else worker).global_size, how)


class VariableWarmup:
    """A `Warmup` that sets a shared variable; ``advice`` for errors says which one to pass."""

    def __init__(
        self, variable: Any, warmup_epochs: float, how: str, worker: Worker | None, steps_per_epoch: Any, advice: str
    ) -> None:
        is_float = isinstance(variable, SharedVariable) and getattr(variable, "dtype", None) in float_dtypes
        if not is_float or getattr(variable, "ndim", None) != 0:
            raise ConfigurationError(f"got {variable!r} as learning_rate: pass {advice}")
        if not steps_per_epoch >= 1:
            raise ConfigurationError(
                f"got steps_per_epoch={steps_per_epoch!r}: it counts mini-batches and must be at least 1"
            )
        size = (connect() if worker is None else worker).global_size
        self._variable = variable
        self._warmup = Warmup(variable.get_value(), warmup_epochs, size, how)

    def set(self, epochs: float) -> None:
        rate = self._warmup.at(epochs)
        if rate is not None:
            self._variable.set_value(np.asarray(rate, self._variable.dtype))
