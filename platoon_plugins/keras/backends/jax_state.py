"""The state of Keras on JAX between two steps of an epoch, which is in lists and not in the variables of the model."""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
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
        self._is_made_by_keras = False  # of the step, without what wraps it here

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
        module = getattr(compiled, "__module__", None) or ""
        self._is_made_by_keras = module.startswith("keras.") and not hasattr(compiled, "__wrapped__")

        @functools.wraps(compiled)
        def step(state: Any, *args: Any) -> Any:
            if self._call is None:
                logs, self._returned = compiled(self._begun_with(state), *args)
                self._before = ()
                return logs, self._returned
            *others, batches = args
            drawn = self._call.draw(batches)
            with self._call.step(drawn) as require_called:
                logs, self._returned = compiled(self._begun_with(state), *others, drawn)
                self._before = ()
                try:
                    require_called(self._returned)
                except BaseException:
                    self._keep(self._returned)
                    raise
            return logs, self._returned

        model.train_function = step
        self._step = weakref.ref(step)

    def _keep(self, returned: Any) -> None:
        """Give the model the state that a step has returned, behind which there was an error."""
        model = self._model()
        if model is not None:
            model._jax_state = dict(zip(STATE, returned))
            self._kept = [model._jax_state[name] for name in STATE]  # Keras copies the lists

    def _begun_with(self, state: Any) -> Any:
        """Return the state with which a step begins."""
        self._open = False
        return self._renewed(state) if self._before and state is not self._returned else state

    def begin_by_a_call(self, variables: Sequence[Any], make_call: Callable[[StepState, list[Place]], Any]) -> None:
        """Let the model's step, before it is compiled, begin by a call that may change the values of variables.

        It does not if somebody has put a function of his own in place of the one that Keras has made.
        """
        model = self._model()
        found = [self._places.get(id(variable)) for variable in variables]
        places = [place for place in found if place is not None]
        if model is None or len(places) != len(found) or not self._is_made_by_keras:
            self._call = None
            return
        # A fit that raised has left the function that took its time.
        if getattr(model.train_function, "untimed", model.train_function) is not self._step():
            self._call = None
            return
        if self._call is None or self._call.places != places:
            call = make_call(self, places)
            if call is None:
                return
            with _in_place_of(model, "train_step", call.within(model.train_step)):
                model.make_train_function(force=True)
            self.watch()
            self._call = call
        if not isinstance(model.jax_state_sync, _FlushFirst):
            model.jax_state_sync = _FlushFirst(self, model)

    def call_on(self, places: Sequence[Place] | None) -> Any:
        """Return the call with which the next step begins, if it changes the arrays at these places."""
        call, model = self._call, self._model()
        if call is None or call.places != places or not isinstance(getattr(model, "jax_state_sync", None), _FlushFirst):
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
        try:
            self.close()
        finally:
            self._open, self._returned, self._kept, self._before = False, None, (), ()
            model = self._model()
            patched = None if model is None else model.jax_state_sync
            if isinstance(patched, _FlushFirst):
                patched.undo()

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


class _FlushFirst:
    """A model's ``jax_state_sync``, by which callbacks ask for the state: what was put off comes first."""

    def __init__(self, state: StepState, model: Any) -> None:
        self._state, self._model = weakref.ref(state), weakref.ref(model)
        self._own = vars(model).get("jax_state_sync")

    def __call__(self) -> None:
        state, model = self._state(), self._model()
        if state is not None:
            state.flush()
        if self._own is not None:
            self._own()
        elif model is not None:
            type(model).jax_state_sync(model)

    def undo(self) -> None:
        """Give the model back what it had."""
        model = self._model()
        if model is not None:
            _restore(model, "jax_state_sync", self._own)


@contextlib.contextmanager
def _in_place_of(model: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Give a model another method within the ``with`` block."""
    own = vars(model).get(name)
    setattr(model, name, function)
    try:
        yield
    finally:
        _restore(model, name, own)


def _restore(model: Any, name: str, own: Any) -> None:
    if own is None:
        delattr(model, name)
    else:
        setattr(model, name, own)


def _nothing() -> None:
    """Return None, as a weak reference to what is gone does."""


def _calls(function: Any, step: Any) -> bool:
    """Return whether a function is ``step``, or wraps it."""
    while function is not None and function is not step:
        function = getattr(function, "__wrapped__", None)
    return function is not None
