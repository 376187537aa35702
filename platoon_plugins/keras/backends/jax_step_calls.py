"""Synchronizations that are a part of the compiled step behind them.

As a program of its own a synchronization takes JAX some milliseconds for the hundreds of arrays of a deep network, and
a small network's step as long as half a step. Within the step it takes no program: the step begins by a call which
queues the center's kernels on the arrays that the step gets.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from platoon_base.device_arrays import Queue
from platoon_base.errors import PlatoonError
from platoon_plugins.keras.backends import xla_calls
from platoon_plugins.keras.backends.jax_arrays import change_now
from platoon_plugins.keras.backends.jax_places import Place

__all__ = ["Lists", "StepCall", "queue_all"]

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
        self._gate = xla_calls.Gate()
        self._traced = False
        self._work: list[tuple[Sequence[int], Queue]] = []
        self._called = threading.Event()
        self._failure: BaseException | None = None

    def within(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for XLA to compile: the call, and then ``step(state, data)``."""

        @functools.wraps(step)
        def begun_by_the_call(state: Any, *args: Any) -> Any:
            lists = [list(values) for values in state]
            if all(place.number < len(lists) and place.index < len(lists[place.number]) for place in self.places):
                taken = [lists[number][index] for number, index in self.places]
                for (number, index), array in zip(self.places, xla_calls.call_on_stream(self, taken, (), self._gate)):
                    lists[number][index] = array
                self._traced = True
                state = tuple(lists)
            return step(state, *args)

        return begun_by_the_call

    def put_off(self, indices: Sequence[int], queue: Queue) -> bool:
        """Let the next step call ``queue`` for some of the arrays; return False before the first step."""
        if self._traced:
            self._work.append((indices, queue))
        return self._traced

    def values(self) -> list[Any]:
        return self._lists.get_all(self.places)

    def flush(self) -> None:
        """Make the calls for which there was no step, by a program of their own."""
        if not self._work:
            return
        work, self._work = self._work, []
        arrays = self._lists.get_all(self.places)
        if any(array.is_deleted() for array in arrays):
            log.debug("a step that failed has taken the weights, so they are not synchronized")
            return
        changed, failure = change_now(arrays, True, functools.partial(queue_all, work))
        self._lists.put_all(self.places, changed)
        if failure is not None:
            raise failure

    def step_begins(self) -> bool:
        """Let the step that comes next make the calls; return whether there are any."""
        if not self._work:
            return False
        self._called.clear()
        self._failure = None
        self._gate.let_one_in()
        return True

    def step_has_begun(self, results: Any) -> None:
        """Wait until the calls have been made, which on devices they have when the step is launched.

        Raises
        ------
        BaseException
            What a call has raised.
        """
        while not self._called.wait(_POLL_INTERVAL_S):
            first = jax.tree.leaves(results)[0]
            if first.is_ready() and not self._called.is_set():  # the step has failed, or an earlier one
                self.step_has_failed()
                jax.block_until_ready(first)
                raise PlatoonError("JAX has ended a step without the synchronization at its beginning")
        if self._failure is not None:
            raise self._failure

    def step_has_failed(self) -> None:
        """Take calls back that the step has not made."""
        self._gate.shut()

    def queue(self, blocks: Sequence[xla_calls.Block], stream: int) -> None:
        """Make the calls, out of the step; an exception is kept for the thread that has started it."""
        work, self._work = self._work, []
        if not work:
            self._called.set()  # without the C extension each step comes here, and another thread may have flushed
            return
        try:
            queue_all(work, [block.address for block in blocks], stream)
        except BaseException as exc:
            self._failure = exc
        self._called.set()


def queue_all(work: Sequence[tuple[Sequence[int], Queue]], addresses: list[int], stream: int) -> None:
    """Make calls that were put off, with the addresses of the arrays of each."""
    for indices, queue in work:
        queue([addresses[i] for i in indices], stream)
