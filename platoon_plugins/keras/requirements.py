"""The requirements on a model that several workers are to train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.backends.base import Backend
from platoon_plugins.keras.gradients import GradientAverage, average_of

__all__ = ["require_distributable", "require_new", "require_no_other_average"]

_FLOATS = ("float16", "float32", "float64")


def require_distributable(model: Any, backend: Backend) -> GradientAverage | None:
    """Look at a model before it is trained together with those of other workers.

    Returns
    -------
    GradientAverage or None
        What averages the gradients of its optimizer; None for a plain one.

    Raises
    ------
    ConfigurationError
        If it is not compiled, or cannot be trained so.
    """
    optimizer = getattr(model, "optimizer", None)
    average = average_of(optimizer) if optimizer is not None else None
    backend.require_trainable(model, average is not None)
    _require_one_average(model, average)
    weights = backend.weights(model)
    if not weights:
        raise ConfigurationError("got a model without trainable weights: there is nothing to train together")
    for weight in weights:
        if weight.dtype not in _FLOATS:
            raise ConfigurationError(
                f"got {weight.name} of dtype {weight.dtype}: workers combine weights of {', '.join(_FLOATS)}; with the "
                'dtype policy "mixed_bfloat16" weights stay float32'
            )
    return average


def require_new(steps: int) -> None:
    """Raise if a plain optimizer has made steps before the first fit with ``rule="auto"``.

    A DistributedOptimizer comes back from a saved model as a plain one, and nothing tells the two apart.
    """
    if steps:
        raise ConfigurationError(
            f'got rule="auto" and a plain optimizer that has made {steps} steps, such as that of a loaded model: a '
            "DistributedOptimizer comes back from a file as a plain one, so whether this training was synchronous is "
            "not known; pass rule=EASGD() to train with a rule, or call "
            "model.compile(DistributedOptimizer(model.optimizer), ...) to go on with averaged gradients"
        )


def require_no_other_average(optimizer: Any) -> None:
    """Raise if an optimizer, or one inside it, keeps averages of the weights that a rule would not know of."""
    for each in _with_inner(optimizer):
        if getattr(each, "use_ema", False):
            raise ConfigurationError(
                "got an optimizer with use_ema=True and a rule: fit would leave the average of one worker's weights in "
                "the model, or that of all, but not both; compile without use_ema (the center is an average already), "
                "or with DistributedOptimizer(optimizer)"
            )
        if any(cls.__name__.startswith("ScheduleFree") for cls in type(each).__mro__):
            raise ConfigurationError(
                f"got the optimizer {type(each).__name__} and a rule: it computes the weights anew from sequences of "
                "its own at each step, so what the center gives them would be lost; compile with another optimizer, "
                "or with DistributedOptimizer(optimizer)"
            )


def _with_inner(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and those inside it: of a LossScaleOptimizer, of a MultiOptimizer."""
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for each in [*([] if inner is None else [inner]), *(getattr(optimizer, "optimizers", None) or ())]:
        yield from _with_inner(each)


def _require_one_average(model: Any, average: GradientAverage | None) -> None:
    """Raise if gradients would be averaged in another place than model.optimizer."""
    if average is None and any(average_of(each) is not None for each in _with_inner(model.optimizer)):
        raise ConfigurationError(
            f"got a {type(model.optimizer).__name__} around a DistributedOptimizer: workers would step "
            "differently; wrap it the other way round, DistributedOptimizer(LossScaleOptimizer(optimizer)), in "
            "compile()"
        )
    own = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    if any(optimizer is not model.optimizer and average_of(optimizer) is not None for optimizer in own):
        raise ConfigurationError(
            "got a model with a DistributedOptimizer beside model.optimizer, such as that of a GAN's second part: the "
            "gradients of model.optimizer alone can be averaged; give the model plain optimizers, call compile() with "
            "a plain one, and keep its weights together by a rule: distribute(..., rule=EASGD())"
        )
