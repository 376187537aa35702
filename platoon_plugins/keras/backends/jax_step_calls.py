"""Synchronizations that are a part of the compiled step behind them.

As a program of its own a synchronization takes JAX some milliseconds for the hundreds of arrays of a deep network, and
a small network's step as long as half a step. Within the step it takes no program: the step begins by a call which
queues the center's kernels on the arrays that the step gets.
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

_POLL_INTERVAL_S = 1.0  # between checks, during the wait for a step's call, whether the step has failed


class Lists(Protocol):
    """The arrays between two steps."""

    def get_all(self, places: Sequence[Place]) -> list[Any]:
        """Return the arrays at some places."""
        ...

    def put_all(self, places: Sequence[Place], arrays: Sequence[Any]) -> None:
        """Replace them."""
        ...


class StepCall:
    """The call at the beginning of a model's compiled step; the `Later` of the arrays that the step gets.

    On devices JAX makes it in the thread that starts the step, before that goes on. Where it comes later, as on the
    CPU, a step that is to make calls waits for the calls of all steps before it.

    Parameters
    ----------
    lists : Lists
    places : sequence of Place
        Of the arrays in the step's state that calls may change, in the order of the parameters.

    Attributes
    ----------
    places : sequence of Place
    """

    def __init__(self, lists: Lists, places: Sequence[Place]) -> None:
        self.places = places
        self._lists = lists
        self._gate: Any = xla_calls.gate_of(self)
        self._traced = False
        self._turn = threading.RLock()  # for what follows; a signal handler may come at any time
        self._work: collections.deque[tuple[Sequence[int], Queue]] = collections.deque()
        self._starts = False  # whether a step is being started that makes the calls
        self._started: int | None = None  # how many steps were, by the gate's count; None if that is not known
        self._called = threading.Event()
        self._failure: BaseException | None = None

    @classmethod
    def made(cls, lists: Lists, places: Sequence[Place]) -> StepCall | None:
        """Make one, if a gate can be had."""
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
        """Let the next step call ``queue`` for some of the arrays; return False if it has no call."""
        if self._traced:
            self._work.append((indices, queue))
        return self._traced

    def values(self) -> list[Any]:
        return self._lists.get_all(self.places)

    def flush(self) -> None:
        """Make the calls for which there was no step, by a program of their own; a step that starts makes them."""
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
        """Return the calls to make, each once, though a signal handler may ask at the same time."""
        taken = []
        while self._work:
            taken.append(self._work.popleft())
        return taken

    @staticmethod
    def draw(batches: Iterator[Any]) -> Drawn:
        """Draw the first batch of a step."""
        return Drawn(batches)

    @contextlib.contextmanager
    def step(self, drawn: Drawn) -> Iterator[Callable[[Any], None]]:
        """Let the step that is started within the ``with`` block with these batches make the calls, if there are any.

        Gives a function to call with the state that the step has returned. It waits for the calls, and raises what one
        of them has raised.
        """
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
        """Let the call of the next step in; return how many came before it."""
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
            if array.is_ready() and not self._called.is_set():  # the step has failed, or an earlier one
                jax.block_until_ready(array)
                raise PlatoonError("JAX has ended a step without the synchronization at its beginning")
        if self._failure is not None:
            raise self._failure

    def queue(self, blocks: Sequence[xla_calls.Block], stream: int) -> None:
        """Make the calls, out of the step; an exception is kept for the thread that has started it."""
        work = self._take()
        try:
            queue_all(work, [block.address for block in blocks], stream)
        except BaseException as exc:
            self._failure = exc
        self._called.set()


class Drawn:
    """The batches of one step, which starts a program for each; a generator may synchronize before the first.

    Attributes
    ----------
    count : int
        Of those that the step has drawn.
    """

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
    """Make calls that were put off, with the addresses of the arrays of each."""
    for indices, queue in work:
        queue([addresses[i] for i in indices], stream)
