"""The state of Keras on JAX between two steps of an epoch, which is in lists and not in the variables of the model."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["STATE", "StepState"]

# The arguments and results of a step, in this order, by their names in Keras's trainer.
STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
_WITH_WEIGHTS = 3  # of these lists, from the first on


class StepState:
    """The lists of arrays that a model's step has returned, and that Keras passes to the next one.

    Where a callback asks for the weights, Keras assigns each array to its variable, and takes it from there for the
    next step: milliseconds for the hundreds of arrays of a deep network. While this is `open`, weights are read and
    replaced in the lists.

    Parameters
    ----------
    model : keras.Model
    """

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._step: Callable[[], Any] = _nothing  # weak: the step refers to the model, by whose life this is kept
        self._places: dict[int, tuple[int, int]] = {}  # by the id of a variable: the number of its list, and its index
        self._returned: Sequence[list[Any]] | None = None
        self._kept: Sequence[list[Any]] = ()  # the trainer's copies of the lists, for callbacks
        self._comes_back = False  # whether the trainer passes on the lists themselves
        self._open = False

    def watch(self) -> None:
        """Keep what the model's step returns, from its next call on."""
        model = self._model()
        if model is None or model.train_function is None:
            return
        # A model lists the variables of optimizers beside its own one among those that are not trainable.
        lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
        self._places = {id(v): (number, i) for number, variables in enumerate(lists) for i, v in enumerate(variables)}
        if _calls(model.train_function, self._step()):
            return
        compiled = model.train_function

        @functools.wraps(compiled)
        def step(state: Any, *args: Any) -> Any:
            self._open = False
            self._comes_back = self._comes_back or state is self._returned
            logs, self._returned = compiled(state, *args)
            return logs, self._returned

        model.train_function = step
        self._step = weakref.ref(step)

    def open(self) -> bool:
        """Let `get` and `put` read and replace weights until the next step; return whether they can."""
        model = self._model()
        self._open = False
        if model is None or not self._comes_back or model._jax_state_synced:
            return False
        if not _calls(model.train_function, self._step()):
            return False
        returned: Any = self._returned
        self._kept = [model._jax_state[name] for name in STATE]
        pairs = [(returned[number], self._kept[number]) for number in range(_WITH_WEIGHTS)]
        self._open = len(self._places) == sum(len(values) for values, _ in pairs) and all(
            len(values) == len(kept) and all(map(operator.is_, values, kept)) for values, kept in pairs
        )
        return self._open

    def close(self) -> None:
        """End `open`."""
        self._open = False

    def drop(self) -> None:
        """Forget the arrays of the latest step."""
        self._open, self._returned, self._kept = False, None, ()

    def has(self, variable: Any) -> bool:
        """Return whether the value of a variable is in the lists."""
        model = self._model() if self._open else None
        return model is not None and not model._jax_state_synced and id(variable) in self._places

    def get(self, variable: Any) -> Any:
        """Return the array of a variable."""
        number, index = self._places[id(variable)]
        returned: Any = self._returned
        return returned[number][index]

    def put(self, variable: Any, array: Any) -> None:
        """Replace the array of a variable by one of its shape and dtype."""
        number, index = self._places[id(variable)]
        returned: Any = self._returned
        returned[number][index] = array
        list.__setitem__(self._kept[number], index, array)  # Keras's own would track the array like a layer


def _nothing() -> None:
    """Return None, as a weak reference to what is gone does."""


def _calls(function: Any, step: Any) -> bool:
    """Return whether a function is ``step``, or wraps it."""
    while function is not None and function is not step:
        function = getattr(function, "__wrapped__", None)
    return function is not None
