"""Synchronizations as a part of the next compiled step.

A separate program for hundreds of arrays takes JAX milliseconds. Instead, the step starts with a
call that queues the center's kernels on its arrays.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax

from platoon_base.device_arrays import Queue
from platoon_base.errors import PlatoonError
from platoon_plugins.keras.backends import xla_calls
from platoon_plugins.keras.backends.jax_arrays import change_now
from platoon_plugins.keras.backends.jax_places import Place

__all__ = ["Drawn", "Lists", "StepCall", "queue_all"]

log = logging.getLogger(__name__)

# Interval of checks for a failed step while waiting for its call.
_POLL_INTERVAL_S = 1.0


class Lists(Protocol):
    """The arrays between two steps."""

    def get_all(self, places: Sequence[Place]) -> list[Any]: ...

    def put_all(self, places: Sequence[Place], arrays: Sequence[Any]) -> None: ...


class StepCall:
    """The call at the start of a model's compiled step; the `Later` of the step's arrays."""

    # On devices JAX makes the call in the thread that starts the step. On the CPU it may be later:
    # a step with changes then waits for the calls of all earlier steps.

    def __init__(self, lists: Lists, places: Sequence[Place]) -> None:
        self.places = places
        self._lists = lists
        self._gate: Any = xla_calls.gate_of(self)
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
    def made(cls, lists: Lists, places: Sequence[Place]) -> StepCall | None:
        """Return a StepCall; None if no gate is free."""
        call = cls(lists, places)
        return None if call._gate is None else call

    def within(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for XLA to compile: the call, and then ``step(state, data)``."""

        @functools.wraps(step)
        def begun_by_the_call(state: Any, *args: Any) -> Any:
            lists = [list(values) for values in state]
            self._traced = all(
                place.number < len(lists) and place.index < len(lists[place.number]) for place in self.places
            )
            if self._traced:
                taken = [lists[number][index] for number, index in self.places]
                for (number, index), array in zip(self.places, xla_calls.call_on_stream(self, taken, (), self._gate)):
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
                log.warning("a synchronization was left out, as a step that has failed had taken the weights")
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
                raise PlatoonError("JAX has ended a step without the synchronization at its beginning")
        if self._failure is not None:
            raise self._failure

    def __call__(self, blocks: Sequence[xla_calls.Block], stream: int) -> None:
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
