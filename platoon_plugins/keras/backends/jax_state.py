"""The state of Keras on JAX between two steps of an epoch, which is in lists and not in the variables of the model."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from platoon_plugins.keras.backends.jax_places import Place

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

    Attributes
    ----------
    version : int
        Changes when the places of variables may have changed.
    """

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._step: Callable[[], Any] = _nothing  # weak: the step refers to the model, by whose life this is kept
        self._places: dict[int, Place] = {}  # by the id of a variable
        self._returned: Sequence[list[Any]] | None = None
        self._kept: Sequence[list[Any]] = ()  # the trainer's copies of the lists, for callbacks
        self._before: Sequence[list[Any]] = ()  # what the latest step has returned, if some of it was replaced
        self.version = 0  # of the places of variables
        self._open = False
        self._call: Any = None  # the StepCall with which the step begins, if it does

    def watch(self) -> None:
        """Keep what the model's step returns, from its next call on."""
        model = self._model()
        if model is None or model.train_function is None:
            return
        # A model lists the variables of optimizers beside its own one among those that are not trainable.
        lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
        self.version += 1
        self._places = {
            id(v): Place(number, i) for number, variables in enumerate(lists) for i, v in enumerate(variables)
        }
        if _calls(model.train_function, self._step()):
            return
        self._call = None  # it is in the step that was compiled before
        compiled = model.train_function

        @functools.wraps(compiled)
        def step(state: Any, *args: Any) -> Any:
            self._open = False
            if self._before and state is not self._returned:
                state = self._renewed(state)
            call = self._call
            begun = call is not None and call.step_begins()
            try:
                logs, self._returned = compiled(state, *args)
            except BaseException:
                if begun:
                    call.step_has_failed()
                raise
            self._before = ()
            if begun:
                self._require_begun(call, logs)
            return logs, self._returned

        model.train_function = step
        self._step = weakref.ref(step)

    def _require_begun(self, call: Any, logs: Any) -> None:
        """Wait for the step's call; after an error the model has the state that the step has returned."""
        try:
            call.step_has_begun(logs or self._returned)
        except BaseException:
            model = self._model()
            if model is not None and self._returned is not None:
                model._jax_state = dict(zip(STATE, self._returned))
            raise

    def begin_by_a_call(self, variables: Sequence[Any], make_call: Callable[[StepState, list[Place]], Any]) -> None:
        """Let the model's step, before it is compiled, begin by a call that may change the values of variables."""
        model = self._model()
        places = [self._places.get(id(variable)) for variable in variables]
        if model is None or None in places or model.train_function is not self._step():
            return  # somebody has wrapped the step meanwhile
        model.jax_state_sync = functools.partial(_flush_and_sync, weakref.ref(self), weakref.ref(model))
        if self._call is not None and self._call.places == places:
            return
        own = vars(model).get("train_step")
        call = make_call(self, [place for place in places if place is not None])
        model.train_step = call.within(model.train_step)
        try:
            model.make_train_function(force=True)
        finally:
            if own is None:
                del model.train_step
            else:
                model.train_step = own
        self.watch()
        self._call = call

    def call_on(self, places: Sequence[Place] | None) -> Any:
        """Return the call with which the next step begins, if it changes the arrays at these places."""
        call = self._call
        if call is None or call.places != places:
            return None
        call.places = places  # a list is compared with itself quickly
        return call

    def flush(self) -> None:
        """Make changes that were put off until the next step."""
        if self._call is not None:
            self._call.flush()

    def open(self) -> bool:
        """Let `get_all` and `put_all` read and replace weights until the next step; return whether they can."""
        model = self._model()
        self._open = False
        if model is None or self._returned is None or model._jax_state_synced:
            return False
        if not _calls(model.train_function, self._step()):
            return False
        returned: Any = self._returned
        self._kept = [model._jax_state[name] for name in STATE]
        pairs = [(returned[number], self._kept[number]) for number in range(_WITH_WEIGHTS)]
        self._open = len(self._places) == sum(len(values) for values, _ in pairs) and all(
            isinstance(values, list)
            and isinstance(kept, list)
            and len(values) == len(kept)
            and all(map(operator.is_, values, kept))
            for values, kept in pairs
        )
        return self._open

    @property
    def is_open(self) -> bool:
        """Whether weights are read and replaced in the lists."""
        model = self._model() if self._open else None
        return model is not None and not model._jax_state_synced

    def close(self) -> None:
        """End `open`."""
        self.flush()
        self._open = False

    def drop(self) -> None:
        """Forget the arrays of the latest step."""
        self.close()
        self._returned, self._kept, self._before = None, (), ()
        model = self._model()
        if model is not None:
            vars(model).pop("jax_state_sync", None)

    def place_of(self, variable: Any) -> Place | None:
        """Return where the value of a variable is in the lists; None if it is not in them now."""
        return self._places.get(id(variable)) if self.is_open else None

    def get_all(self, places: Sequence[Place]) -> list[Any]:
        """Return the arrays of variables."""
        self.flush()
        returned: Any = self._returned
        return [returned[number][index] for number, index in places]

    def put_all(self, places: Sequence[Place], arrays: Sequence[Any]) -> None:
        """Replace the arrays of variables by others of their shapes and dtypes."""
        self.flush()
        returned: Any = self._returned
        if not self._before:
            self._before = [list(values) for values in returned]
        for (number, index), array in zip(places, arrays):
            returned[number][index] = array
            list.__setitem__(self._kept[number], index, array)  # Keras's own would track the array like a layer

    def _renewed(self, state: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return a state with what `put_all` has put in place of arrays that the trainer still has from before."""
        returned: Any = self._returned
        return tuple(
            [now if old is before else old for old, before, now in zip(given, *known)]
            if len(given) == len(known[0])
            else given
            for given, *known in zip(state, self._before, returned)
        )


def _flush_and_sync(state: Callable[[], StepState | None], model: Callable[[], Any]) -> None:
    """Make changes that were put off, and give the state to the variables as Keras does."""
    known, of = state(), model()
    if known is not None:
        known.flush()
    if of is not None:
        type(of).jax_state_sync(of)


def _nothing() -> None:
    """Return None, as a weak reference to what is gone does."""


def _calls(function: Any, step: Any) -> bool:
    """Return whether a function is ``step``, or wraps it."""
    while function is not None and function is not step:
        function = getattr(function, "__wrapped__", None)
    return function is not None
