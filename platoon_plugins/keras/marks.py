"""Marks of optimizers that average gradients and of models in a fit; patches of Keras; the calling fit."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError

_MARK = "distributed_"


def mark(optimizer: Any) -> None:
    """Mark an optimizer of Keras 3 as averaging gradients; those of Keras 2 have no names."""
    if not is_marked(optimizer) and isinstance(getattr(optimizer, "name", None), str):
        optimizer.name = _MARK + optimizer.name


def unmark(optimizer: Any) -> None:
    if is_marked(optimizer):
        optimizer.name = optimizer.name.removeprefix(_MARK)


def is_marked(optimizer: Any) -> bool:
    """Return whether an optimizer of Keras 3 averages gradients, or did before a copy or save."""
    return str(getattr(optimizer, "name", "")).startswith(_MARK)


def refuse_unwrapped_copies() -> None:
    """Make plain copies of a DistributedOptimizer raise instead of training on one worker alone."""
    # Copies are of Keras's own classes, whose methods are patched.
    base = keras.optimizers.Optimizer
    for cls in (each for each in vars(keras.optimizers).values() if isinstance(each, type) and issubclass(each, base)):
        for name in ("apply", "stateless_apply"):
            if name in vars(cls) or (cls is base and name == "apply"):
                patch(cls, name, checked)


def checked(plain: Any, optimizer: Any, *args: Any, **options: Any) -> Any:
    averages = hasattr(type(optimizer), "gradient_average")
    if is_marked(optimizer) and not averages and connect().global_size > 1:
        raise ConfigurationError(
            f"got the optimizer {optimizer.name!r} without distribute(...), a copy of a "
            "DistributedOptimizer or one that was loaded with a model: it would train only this "
            "worker's model; call prepare(model), or pass callbacks=distribute() to fit, or call "
            "broadcast_variables(model) before a loop over train_on_batch. To train on this "
            f"worker alone, use a name that does not begin with {_MARK!r}"
        )
    return plain(optimizer, *args, **options)


# Models that a fit with `distribute` has trained on several workers.
trained: weakref.WeakSet[Any] = weakref.WeakSet()
# The settings of prepared models.
prepared: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# Workers with a fit in progress that shares parameters.
sharing: weakref.WeakSet[Worker] = weakref.WeakSet()
# Models in a training loop of Keras 2, which may call `train_on_batch`.
in_loops: weakref.WeakSet[Any] = weakref.WeakSet()


def patch(owner: Any, name: str, new: Callable[..., Any]) -> None:
    """Replace a function of Keras, if it exists, by ``new(plain, *args, **options)``, once."""
    plain = getattr(owner, name, None)
    if plain is None or hasattr(plain, new.__name__):
        return

    @functools.wraps(plain)
    def patched(*args: Any, **options: Any) -> Any:
        return new(plain, *args, **options)

    setattr(patched, new.__name__, plain)
    setattr(owner, name, patched)


def change_class(thing: Any, methods: dict[str, Any]) -> None:
    """Give an object a class with other methods that looks like its own, also in saved models."""
    base: Any = type(thing)
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    thing.__class__ = type(base.__name__, (base,), {**names, **methods})


signature_of = functools.cache(inspect.signature)


def callers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and local variables of the functions on the call stack, innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_name, frame.f_locals
        frame = frame.f_back


def arguments_of_fit(model: Any) -> dict[str, Any]:
    """Return the local variables of the calling ``fit``, which Keras does not pass to callbacks."""
    for name, values in callers():
        if name in ("fit", "fit_generator") and values.get("self") is model:
            return values
    return {}
