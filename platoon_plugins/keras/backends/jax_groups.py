"""Variables on JAX that are borrowed and returned together, and synchronized in the next compiled step.

A separate program for hundreds of arrays takes JAX milliseconds. Instead, the step starts with a
call that queues the center's kernels on its arrays.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from platoon_base.device_arrays import Queue
from platoon_base.errors import PlatoonError
from platoon_base.jax_arrays import (
    AwaitedArrays,
    Block,
    JaxArrays,
    call_on_stream,
    change_now,
    device_of,
    gate_of,
    on_cuda,
)  # fmt: skip
from platoon_plugins.keras.backends.aligned import writable
from platoon_plugins.keras.backends.jax_state import Place, StepState

Array = np.ndarray[Any, Any]

log = logging.getLogger(__name__)

# Interval of checks for a failed step while waiting for its call.
_POLL_INTERVAL_S = 1.0


class StepCall:
    """The call at the start of a model's compiled step; it changes the step's arrays."""

    # On devices JAX makes the call in the thread that starts the step. On the CPU it may be later:
    # a step with changes then waits for the calls of all earlier steps.

    def __init__(self, lists: StepState, places: Sequence[Place]) -> None:
        self.places = places
        self._lists = lists
        self._gate: Any = gate_of(self)
        self._traced = False
        # The lock of the attributes below; reentrant, as a signal handler may run at any time.
        self._turn = threading.RLock()
        self._work: collections.deque[tuple[Sequence[int], Queue]] = collections.deque()
        # Whether a step that makes the calls is being started.
        self._starts = False
        # The gate's count of started steps; None if unknown.
        self._started: int | None = None
        self._called = threading.Event()
        self._failure: BaseException | None = None

    @classmethod
    def made(cls, lists: StepState, places: Sequence[Place]) -> StepCall | None:
        """Return a StepCall; None if no gate is free."""
        call = cls(lists, places)
        return None if call._gate is None else call

    def within(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for XLA to compile: the call, and then ``step(state, data)``."""

        @functools.wraps(step)
        def begun_by_the_call(state: Any, *args: Any) -> Any:
            lists = [list(values) for values in state]
            self._traced = all(
                place.number < len(lists) and place.position < len(lists[place.number]) for place in self.places
            )
            if self._traced:
                taken = [lists[number][index] for number, index in self.places]
                for (number, index), array in zip(self.places, call_on_stream(self, taken, (), self._gate)):
                    lists[number][index] = array
                state = tuple(lists)
            return step(state, *args)

        return begun_by_the_call

    def put_off(self, indices: Sequence[int], queue: Queue) -> bool:
        """Let the next step call ``queue`` for some arrays; return False if it has no call."""
        if self._traced:
            self._work.append((indices, queue))
        return self._traced

    def values(self) -> list[Any]:
        return self._lists.get_all(self.places)

    def flush(self) -> None:
        """Make the deferred calls by a separate program, unless a starting step makes them."""
        with self._turn:
            work = [] if self._starts else self._take()
            if not work:
                return
            arrays = self._lists.get_all(self.places)
            if any(array.is_deleted() for array in arrays):
                log.warning("a synchronization was skipped, because a failed step had taken the weights")
                return
            changed, failure = change_now(arrays, True, functools.partial(queue_all, work))
            self._lists.put_all(self.places, changed)
            if failure is not None:
                raise failure

    def _take(self) -> list[tuple[Sequence[int], Queue]]:
        """Return each call to make once, even if a signal handler interrupts."""
        taken = []
        while self._work:
            taken.append(self._work.popleft())
        return taken

    @staticmethod
    def draw(batches: Iterator[Any]) -> Drawn:
        return Drawn(batches)

    @contextlib.contextmanager
    def step(self, drawn: Drawn) -> Iterator[Callable[[Any], None]]:
        """Make the deferred calls in the step that starts within the ``with`` block."""
        # The yielded function waits for the calls after the step, and raises their errors.
        started, self._started = self._started, None
        try:
            with self._turn:
                self._starts = bool(self._work)
            if self._starts:
                started = self._let_in(started)
            yield self._require_called if self._starts else _nothing
            self._started = None if started is None else started + drawn.count
        finally:
            if self._starts:
                self._gate.shut()
                self._starts = False

    def _let_in(self, started: int | None) -> int:
        """Admit the call of the next step; return the number of earlier calls."""
        gate = self._gate
        if gate.came != started:
            jax.block_until_ready(self._lists.get_all(self.places))
        self._called.clear()
        self._failure = None
        before: int = gate.came
        gate.let_one_in()
        return before

    def _require_called(self, state: Any) -> None:
        number, index = self.places[0]
        while not self._called.wait(_POLL_INTERVAL_S):
            array = state[number][index]
            # This step or an earlier one has failed.
            if array.is_ready() and not self._called.is_set():
                jax.block_until_ready(array)
                raise PlatoonError("JAX ended a step without the synchronization at its start")
        if self._failure is not None:
            raise self._failure

    def __call__(self, blocks: Sequence[Block], stream: int) -> None:
        """Make the calls; an exception is stored for the thread that started the step."""
        work = self._take()
        try:
            queue_all(work, [block.address for block in blocks], stream)
        except BaseException as exc:
            self._failure = exc
        self._called.set()


class Drawn:
    """The batches of one step; ``count`` of them have been drawn."""

    # The first one is drawn before the step, as a generator may synchronize.

    def __init__(self, batches: Iterator[Any]) -> None:
        self.count = 0
        self._batches, self._first = batches, [next(batches)]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._first.pop() if self._first else next(self._batches)
        self.count += 1
        return batch


def _nothing(state: Any) -> None:
    """Do nothing, where there were no calls to make."""


def queue_all(work: Sequence[tuple[Sequence[int], Queue]], addresses: list[int], stream: int) -> None:
    """Make deferred calls, each with the addresses of its arrays."""
    for indices, queue in work:
        queue([addresses[i] for i in indices], stream)


class VariableGroup:
    """Borrows the variables of one model; see `platoon_base.parameters.Group`."""

    def __init__(self, state: StepState, take_over: Callable[[list[Any]], list[Any]]) -> None:
        self._state, self._take_over = state, take_over
        self._lent: list[weakref.ref[Array]] = []
        self._known: tuple[int, Any, list[Place] | None] = (0, None, None)
        # The call of the steps whose arrays have been checked.
        self._awaited: Any = None
        self._devices = _Kind(lambda array: on_cuda(array) is not None)
        self._hosts = _Kind(lambda array: device_of(array.sharding).platform == "cpu" and array.dtype.kind == "f")

    def borrow(self, variables: Sequence[Any]) -> list[Array] | None:
        """Return the memory of all values if possible; None to borrow them one by one."""
        if not _all_donated(variables):
            return None
        arrays = self._arrays(variables)
        if not self._hosts.has(arrays):
            return None
        taken = self._take_over(arrays)
        self._assign(variables, taken)
        found = [writable(np.asarray(array)) for array in taken]
        # The references are weak: JAX would copy memory that is still referenced.
        self._lent = [weakref.ref(array) for array in found]
        return found

    def give_back(self, variables: Sequence[Any], arrays: Sequence[Any]) -> bool:
        """Make borrowed arrays the values again; return whether that is done."""
        if isinstance(arrays, JaxArrays):
            if arrays.are_to_be_given_back:
                self._assign(variables, arrays.values)
            return True
        lent, self._lent = self._lent, []
        # The same arrays are still the memory of the values.
        return _same(arrays, [array() for array in lent])

    def borrow_on_device(self, variables: Sequence[Any]) -> JaxArrays | None:
        """Return the values if all are on one CUDA device; None to borrow them one by one."""
        places = self._places_of(variables)
        call = self._state.call_on(places)
        if call is not None and call is self._awaited:
            return AwaitedArrays(call, len(variables), self._devices.like)
        arrays = self._arrays(variables)
        if not self._devices.has(arrays):
            return None
        # Callbacks may refer to arrays of variables, but not to those in the lists.
        donated = places is not None and _all_donated(variables)
        if donated:
            # Later steps return arrays like these.
            self._awaited = call
        return JaxArrays(arrays, donated, self._devices.like)

    def share_on_device(self, variables: Sequence[Any]) -> None:
        """Let steps synchronize variables themselves; call it before they are compiled."""
        if _all_donated(variables) and self._devices.has(self._arrays(variables)):
            self._state.begin_by_a_call([variable.variable for variable in variables], StepCall.made)

    def forget(self) -> None:
        self._known, self._lent, self._awaited = (0, None, None), [], None

    def _arrays(self, variables: Sequence[Any]) -> list[Any]:
        places = self._places_of(variables)
        return [variable.array for variable in variables] if places is None else self._state.get_all(places)

    def _assign(self, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
        places = self._places_of(variables)
        if places is not None:
            self._state.put_all(places, arrays)
            return
        for variable, array in zip(variables, arrays):
            variable.array = array

    def _places_of(self, variables: Sequence[Any]) -> list[Place] | None:
        """Return the places of the values in the trainer's lists; None if they are not there."""
        if not self._state.is_open:
            return None
        version, known, places = self._known
        if version != self._state.version or known is not variables:
            found = [self._state.place_of(variable.variable) for variable in variables]
            places = None if None in found else [place for place in found if place is not None]
            self._known = self._state.version, variables, places
        return places


class _Kind:
    """Tells whether all arrays of a list are on one device and ``fits(array)`` holds for each."""

    # Programs return arrays with the same sharding and shape objects: only other lists are checked.
    # `like` is a new object whenever shapes, dtypes or devices differ from the previous list.

    def __init__(self, fits: Callable[[Any], bool]) -> None:
        self.like: object = None
        self._fits = fits
        self._shardings: list[Any] = []
        self._shapes: list[Any] = []
        self._good = False

    def has(self, arrays: Sequence[Any]) -> bool:
        """Return whether all arrays are on one device, fit, and are distinct."""
        shardings, shapes = [array.sharding for array in arrays], [array.aval for array in arrays]
        if not (_same(shardings, self._shardings) and _same(shapes, self._shapes)):
            self.like, self._shardings, self._shapes = object(), shardings, shapes
            devices = {device_of(sharding) for sharding in shardings}
            self._good = len(devices) == 1 and None not in devices and all(map(self._fits, arrays))
        return self._good and len(set(map(id, arrays))) == len(arrays)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _all_donated(variables: Sequence[Any]) -> bool:
    return all(map(operator.attrgetter("donated"), variables))
