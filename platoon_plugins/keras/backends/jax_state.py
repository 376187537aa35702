"""The state of Keras on JAX between two steps: lists of arrays instead of variables."""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Position of an array in list ``number`` of the state of a step, see `jax_state.STATE`."""

    number: int
    position: int


# The arguments and results of a step, in this order, by their names in Keras's trainer.
STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
# The number of leading lists that may have weights.
_WITH_WEIGHTS = 3


class StepState:
    """The lists of arrays that a step has returned and that Keras passes to the next one."""

    # Assigning every array to its variable would take milliseconds for a deep network. While this
    # is `open`, weights are read and replaced in the lists.

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        # The reference is weak, as the step refers to the model.
        self._step: Callable[[], Any] = _nothing
        # Places by the id of the variable.
        self._places: dict[int, Place] = {}
        self._returned: Sequence[list[Any]] | None = None
        # The trainer's copies of the lists.
        self._kept: Sequence[list[Any]] = ()
        # The original results of the latest step, if some were replaced.
        self._before: Sequence[list[Any]] = ()
        self.version = 0
        self._open = False
        # The StepCall at the start of the step, if any.
        self._call: Any = None
        # Whether Keras made the step that is wrapped here.
        self._is_made_by_keras = False

    def watch(self) -> None:
        """Keep the results of the model's step from its next call on."""
        model = self._model()
        if model is None or model.train_function is None:
            return
        # The non-trainable variables include those of other optimizers.
        lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
        self.version += 1
        self._places = {
            id(v): Place(number, i) for number, variables in enumerate(lists) for i, v in enumerate(variables)
        }
        if _calls(model.train_function, self._step()):
            return
        self._call = None  # It was in the previous compiled step.
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
        """Give the model the state of a step that was followed by an error."""
        model = self._model()
        if model is not None:
            model._jax_state = dict(zip(STATE, returned))
            self._kept = [model._jax_state[name] for name in STATE]  # Keras copies the lists.

    def _begun_with(self, state: Any) -> Any:
        self._open = False
        return self._renewed(state) if self._before and state is not self._returned else state

    def begin_by_a_call(self, variables: Sequence[Any], make_call: Callable[[StepState, list[Place]], Any]) -> None:
        """Start the model's step, before it is compiled, by a call that may change variables."""
        # Nothing is done if the user has replaced the function that Keras made.
        model = self._model()
        found = [self._places.get(id(variable)) for variable in variables]
        places = [place for place in found if place is not None]
        if model is None or len(places) != len(found) or not self._is_made_by_keras:
            self._call = None
            return
        # A fit that raised has left its timed function.
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
        """Return the call at the start of the next step, if it changes these arrays."""
        call, model = self._call, self._model()
        if call is None or call.places != places or not isinstance(getattr(model, "jax_state_sync", None), _FlushFirst):
            return None
        # Comparing a list with itself is fast.
        call.places = places
        return call

    def flush(self) -> None:
        """Make changes that were deferred until the next step."""
        if self._call is not None:
            self._call.flush()

    def open(self) -> bool:
        """Let `get_all` and `put_all` use the lists until the next step; return if they can."""
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
        model = self._model() if self._open else None
        return model is not None and not model._jax_state_synced

    def close(self) -> None:
        self.flush()
        self._open = False

    def drop(self) -> None:
        try:
            self.close()
        finally:
            self._open, self._returned, self._kept, self._before = False, None, (), ()
            model = self._model()
            patched = None if model is None else model.jax_state_sync
            if isinstance(patched, _FlushFirst):
                patched.undo()

    def place_of(self, variable: Any) -> Place | None:
        """Return the place of a variable in the lists; None if it is not in them now."""
        return self._places.get(id(variable)) if self.is_open else None

    def get_all(self, places: Sequence[Place]) -> list[Any]:
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
            list.__setitem__(self._kept[number], index, array)  # This avoids Keras's tracking.

    def _renewed(self, state: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return a state in which old arrays are replaced by those of `put_all`."""
        returned: Any = self._returned
        return tuple(
            [now if old is before else old for old, before, now in zip(given, *known)]
            if len(given) == len(known[0])
            else given
            for given, *known in zip(state, self._before, returned)
        )


class _FlushFirst:
    """A model's ``jax_state_sync`` that first makes deferred changes."""

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
        model = self._model()
        if model is not None:
            _restore(model, "jax_state_sync", self._own)


@contextlib.contextmanager
def _in_place_of(model: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of a model within the ``with`` block."""
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
    """Return None, as a weak reference to a deleted object does."""


def _calls(function: Any, step: Any) -> bool:
    """Return whether a function is ``step``, or wraps it."""
    while function is not None and function is not step:
        function = getattr(function, "__wrapped__", None)
    return function is not None
