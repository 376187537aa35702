"""Detect collectives on a device that will never complete, by the call counts of all ranks.

NCCL waits forever for a rank that has died. `DeviceWatch`, a thread, ends the wait and raises the
reason in the waiting thread. `DeviceGuard`, in C, does so if a framework holds the GIL while it
waits for the device: torch does when it copies a number to the host, such as the learning rate of
SGD in Keras.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, PlatoonError, WorkerLostError
from platoon_base.shm.liveness import Call, Liveness, stalled_text
from platoon_base.system.process import awake
from platoon_base.timeouts import POLL_S, SHORT_POLL_S, timeout

_guard: Any = None  # The C extension, if it was built.
with contextlib.suppress(ImportError):
    _guard = importlib.import_module("platoon_base._guard")

log = logging.getLogger(__name__)

HAVE_GUARD = _guard is not None
SETTLED_S = 10.0  # A call that all ranks have begun counts as completed after this time.


class Fault(NamedTuple):
    """Why a group is broken; ``interrupt``: raise the error in the thread of the latest call."""

    error: PlatoonError
    interrupt: bool


def ranks_behind(mine: Call, others: Sequence[int], liveness: Liveness) -> list[int]:
    """Return the other ranks that have not made this rank's latest call yet."""
    return [rank for rank in others if liveness.latest_call(rank).number < mine.number]


def find_fault(mine: Call, others: Sequence[int], liveness: Liveness, now: float) -> Fault | None:
    """Return why this rank's latest call cannot complete, or None; ``now`` is a time of `awake`."""
    if not mine.number:
        return None
    calls = {rank: liveness.latest_call(rank) for rank in others}
    strangers = [r for r, call in calls.items() if call.number == mine.number and call.signature != mine.signature]
    if strangers:
        text = (
            f"call number {mine.number} on this device differs from that of rank {strangers[0]}: all ranks must make "
            "the same calls, with arrays of the same shapes and dtypes, in the same order"
        )
        return Fault(ConfigurationError(text), interrupt=True)
    behind = ranks_behind(mine, others, liveness)
    dead = [rank for rank in others if liveness.died(rank)]
    why = liveness.why_absent(behind or dead) if behind or dead else ""
    if why:
        text = f"collective number {mine.number} on this device cannot complete: {why}"
        # If a rank died after it began the call, the call may have completed. Only a recent call
        # may still wait.
        return Fault(WorkerLostError(text), interrupt=bool(behind) or now - mine.begun < SETTLED_S)
    if behind and now > mine.deadline and now > liveness.moved(behind) + mine.deadline - mine.begun:
        who = ", ".join(f"rank {rank} ({stalled_text(liveness.moved([rank]))})" for rank in behind)
        text = f"waited for {who} in collective number {mine.number} on this device: read "
        text += "their logs, or pass a longer timeout_s (PLATOON_TIMEOUT_S sets it for all waits)"
        return Fault(CollectiveTimeoutError(text), interrupt=True)
    return None


class DeviceGuard:
    """Ends a device's wait for dead ranks if `DeviceWatch`, which knows the reason, cannot."""

    def __init__(
        self, others: Sequence[int], liveness: Liveness, call_counter: Any, function: int, argument: int
    ) -> None:
        calls, lefts = [liveness.call_counter(rank) for rank in others], [liveness.left_flag(rank) for rank in others]
        self._words = [call_counter, *calls, *lefts]  # The guard reads this memory.
        fd, locks = liveness.locks(others)
        rows = [(call.ctypes.data, left.ctypes.data, lock) for call, left, lock in zip(calls, lefts, locks)]
        table = np.array(rows, np.uint64)
        self._address = _guard.start(
            fd, call_counter.ctypes.data, table.ctypes.data, len(rows), function, argument, 2 * timeout("cause")
        )
        self._stopped = False
        self._deadline = ctypes.c_double.from_address(self._address)

    def expect(self, deadline_s: float) -> None:
        """Set the deadline of the next call for live ranks, in seconds of `awake`."""
        self._deadline.value = deadline_s + time.monotonic() - awake()

    @property
    def ended(self) -> bool:
        """Whether a wait was ended; then the group is unusable."""
        return bool(_guard.ended(self._address))

    def end(self) -> None:
        _guard.end(self._address)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            _guard.stop(self._address)


class DeviceWatch:
    """A thread that watches this rank's latest call, between `start` and `stop`.

    ``call_counter`` is the word of the job's state with this worker's latest call, shape (1,),
    int64. ``abort`` ends the wait on the device and is called in this thread; ``guard`` ends the
    wait if this thread cannot run. ``broken`` is the reason why the group is broken, or None.
    """

    def __init__(
        self,
        others: Sequence[int],
        liveness: Liveness,
        call_counter: Any,
        abort: Callable[[], None],
        guard: DeviceGuard | None = None,
    ) -> None:
        self._guard = guard
        self._others = tuple(others)
        self._liveness = liveness
        self._call_counter = call_counter
        self._abort_device = abort
        self._call = Call.of(int(call_counter[0]))
        self._caller = threading.get_ident()
        self._done = threading.Event()
        self._report_lock = threading.Lock()
        self._reported = False
        self._thread = threading.Thread(target=self._watch, name="platoon-nccl", daemon=True)
        self.broken: PlatoonError | None = None

    def start(self) -> None:
        self._thread.start()

    def begin(self, signature: int, timeout_s: float) -> None:
        """Publish the next call to the other ranks; raises if the group is broken or closed."""
        self.require_sound()
        if self._done.is_set():
            raise ConfigurationError("this collective is closed")
        begun, self._caller = awake(), threading.get_ident()
        # All groups of this process share the word: their calls have one order and are counted
        # together.
        number = Call.of(int(self._call_counter[0])).number + 1
        self._call = Call(number, signature, begun, begun + timeout_s)
        if self._guard is not None:
            self._guard.expect(self._call.deadline)
        self._call_counter[0] = self._call.word

    def require_sound(self) -> None:
        """Raise if the group is broken; then the results of its latest calls are undefined."""
        if self._guard is not None and self._guard.ended:  # The thread is about to find the reason.
            self.wait_for_fault()
            raise WorkerLostError("a collective on this device did not complete: see the logs of the other ranks")
        self._raise_broken("; this device group cannot be used any more")

    def wait_for_fault(self) -> None:
        """Wait for the thread to find the cause of a failed call, and raise it if found."""
        deadline = awake() + 3 * timeout("cause")
        while self.broken is None and awake() < deadline:
            time.sleep(SHORT_POLL_S)
        self._raise_broken()

    @property
    def stopped(self) -> bool:
        return self._done.is_set()

    def stop(self) -> None:
        self._done.set()
        self._thread.join(timeout("end"))
        if self._guard is not None:
            self._guard.stop()

    def _raise_broken(self, more: str = "") -> None:
        # The thread must not raise the same error again in the handler of the first.
        with self._report_lock:
            if self.broken is None:
                return
            self._reported = True
        raise type(self.broken)(f"{self.broken}{more}")

    # The methods below run in the thread.

    def _watch(self) -> None:
        while not self._done.wait(POLL_S):
            call = self._call
            fault = find_fault(call, self._others, self._liveness, awake())
            if fault is not None:
                self._break(fault)
                return
            self._extend_guard(call)

    def _extend_guard(self, call: Call) -> None:
        """Extend the guard's deadline while ranks that are behind make progress."""
        if self._guard is None or awake() <= call.deadline:
            return
        behind = ranks_behind(call, self._others, self._liveness)
        if behind:
            moved = self._liveness.moved(behind)
            self._guard.expect(max(call.deadline, moved + call.deadline - call.begun))
        if call is not self._call:  # Another call has begun meanwhile.
            self._guard.expect(self._call.deadline)

    def _break(self, fault: Fault) -> None:
        self.broken = fault.error
        log.error("%s", fault.error)
        self._abort_device()
        with self._report_lock:
            if fault.interrupt and not self._reported and not self._done.is_set():
                _raise_in(self._caller, fault.error)


def _raise_in(thread: int, reason: PlatoonError) -> None:
    """Raise in another thread, at its next bytecode; the result that it waits for never arrives."""
    kind = type(
        type(reason).__name__, (type(reason),), {"__init__": lambda self: Exception.__init__(self, str(reason))}
    )
    kind.__module__ = type(reason).__module__
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
