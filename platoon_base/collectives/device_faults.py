"""Collectives queued on a device that will never complete: found by the counts of all ranks, ended, and reported.

NCCL waits for ever for a rank that is gone. `DeviceWatch`, a thread, ends that wait, and raises the reason in the
thread that waits. `DeviceGuard`, in C, does so where a framework keeps the interpreter's lock: torch waits for a device
with that lock held where it needs a number on the host, as Keras's SGD does for its learning rate. No thread of Python
runs meanwhile.
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
from platoon_base.shm.calls import Call
from platoon_base.shm.liveness import Liveness
from platoon_base.shm.progress_watch import stalled_text

_guard: Any = None  # the module in C, if it is there
with contextlib.suppress(ImportError):
    _guard = importlib.import_module("platoon_base._guard")

__all__ = ["HAVE_GUARD", "DeviceGuard", "DeviceWatch", "Fault", "find_fault", "ranks_behind"]

log = logging.getLogger(__name__)

HAVE_GUARD = _guard is not None
SETTLED_S = 10.0  # after so long a call that all ranks have begun counts as completed
GRACE_S = 3.0  # in which `DeviceWatch`, which knows the reason, ends the wait itself if it can run
_POLL_INTERVAL_S = 0.1
_CAUSE_TIMEOUT_S = 5.0  # for the thread to find out why a call has failed


class Fault(NamedTuple):
    """Why the group is lost.

    Attributes
    ----------
    error : PlatoonError
    interrupt : bool
        Whether somebody may be waiting for a result that is worthless now.
    """

    error: PlatoonError
    interrupt: bool


def ranks_behind(mine: Call, others: Sequence[int], liveness: Liveness) -> list[int]:
    """List the other ranks that have not made a rank's latest call yet."""
    return [rank for rank in others if liveness.latest_call(rank).number < mine.number]


def find_fault(mine: Call, others: Sequence[int], liveness: Liveness, now: float) -> Fault | None:
    """Tell what keeps a rank's latest call from completing, if anything does.

    Parameters
    ----------
    mine : Call
    others : sequence of int
        The other ranks of the group.
    liveness : Liveness
    now : float
        Seconds of the monotonic clock.
    """
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
        # A rank that died after it had begun the call may have completed it: only a recent one may be waited for.
        return Fault(WorkerLostError(text), interrupt=bool(behind) or now - mine.begun < SETTLED_S)
    if behind and now > mine.deadline and now > liveness.moved(behind) + mine.deadline - mine.begun:
        who = ", ".join(f"rank {rank} ({stalled_text(liveness.moved([rank]))})" for rank in behind)
        text = f"waited for {who} in collective number {mine.number} on this device: look into "
        text += "their logs, or give a longer timeout_s (PLATOON_TIMEOUT_S sets it for all waits)"
        return Fault(CollectiveTimeoutError(text), interrupt=True)
    return None


class DeviceGuard:
    """Ends the wait of a device for ranks that are gone, if nobody does so within `GRACE_S`.

    Parameters
    ----------
    others : sequence of int
        The other ranks of the group, as those of the job.
    liveness : Liveness
    call_counter : ndarray, shape (1,) int64
        See `DeviceWatch`.
    function, argument : int
        Addresses: what is called to end the wait, in C, and its argument.
    """

    def __init__(
        self, others: Sequence[int], liveness: Liveness, call_counter: Any, function: int, argument: int
    ) -> None:
        calls, lefts = [liveness.call_counter(rank) for rank in others], [liveness.left_flag(rank) for rank in others]
        self._words = [call_counter, *calls, *lefts]  # whose memory is read
        fd, locks = liveness.locks(others)
        rows = [(call.ctypes.data, left.ctypes.data, lock) for call, left, lock in zip(calls, lefts, locks)]
        table = np.array(rows, np.uint64)
        self._address = _guard.start(
            fd, call_counter.ctypes.data, table.ctypes.data, len(rows), function, argument, GRACE_S
        )
        self._stopped = False
        self._deadline = ctypes.c_double.from_address(self._address)

    def expect(self, deadline_s: float) -> None:
        """Say until when the call that begins may wait for ranks that live, by the monotonic clock."""
        self._deadline.value = deadline_s

    @property
    def ended(self) -> bool:
        """Whether the wait was ended: what it was for can be used no more."""
        return bool(_guard.ended(self._address))

    def end(self) -> None:
        """End the wait now, unless that was done, or nobody guards any more."""
        _guard.end(self._address)

    def stop(self) -> None:
        """Guard no more; a second call does nothing."""
        if not self._stopped:
            self._stopped = True
            _guard.stop(self._address)


class DeviceWatch:
    """Watches from `start` on until `stop`.

    Parameters
    ----------
    others : sequence of int
        The other ranks of the group, as those of the job.
    liveness : Liveness
    call_counter : ndarray, shape (1,) int64
        The word of the job's state in which the others see this worker's latest call.
    abort : callable
        Ends what waits on the device; called in the thread.
    guard : DeviceGuard, optional
        Ends it where this thread cannot run.

    Attributes
    ----------
    broken : PlatoonError or None
        Why the group can be used no more.
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
        self._told = False
        self._thread = threading.Thread(target=self._watch, name="platoon-nccl", daemon=True)
        self.broken: PlatoonError | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def begin(self, signature: int, timeout_s: float) -> None:
        """Record the call that is made next, and tell the others.

        Raises
        ------
        PlatoonError
            If the group is broken.
        ConfigurationError
            If it is closed.
        """
        self.require_sound()
        if self._done.is_set():
            raise ConfigurationError("this collective is closed")
        begun, self._caller = time.monotonic(), threading.get_ident()
        # The word is that of all groups of this process: their calls are counted together, as they are ordered.
        number = Call.of(int(self._call_counter[0])).number + 1
        self._call = Call(number, signature, begun, begun + timeout_s)
        if self._guard is not None:
            self._guard.expect(self._call.deadline)
        self._call_counter[0] = self._call.word

    def require_sound(self) -> None:
        """Raise why the group is broken, if it is: what it combined last may not be a result."""
        if self._guard is not None and self._guard.ended:  # the thread is about to say why
            self.wait_for_fault()
            raise WorkerLostError("a collective on this device did not complete: see the logs of the other ranks")
        self._raise_broken("; this group of devices can be used no more")

    def wait_for_fault(self, timeout_s: float = _CAUSE_TIMEOUT_S) -> None:
        """Give the thread time to find out why a call has failed, and raise the reason if it does.

        Raises
        ------
        PlatoonError
            See `begin`.
        """
        deadline = time.monotonic() + timeout_s
        while self.broken is None and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S / 10)
        self._raise_broken()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._done.is_set()

    def stop(self) -> None:
        """End the thread."""
        self._done.set()
        self._thread.join(timeout=5)
        if self._guard is not None:
            self._guard.stop()

    def _raise_broken(self, more: str = "") -> None:
        with self._report_lock:  # once: the thread does not raise the same behind the first handler's back
            if self.broken is None:
                return
            self._told = True
        raise type(self.broken)(f"{self.broken}{more}")

    # In the thread.

    def _watch(self) -> None:
        while not self._done.wait(_POLL_INTERVAL_S):
            call = self._call
            fault = find_fault(call, self._others, self._liveness, time.monotonic())
            if fault is not None:
                self._break(fault)
                return
            self._extend_guard(call)

    def _extend_guard(self, call: Call) -> None:
        """Let the guard wait longer for ranks that are behind and go on."""
        if self._guard is None or time.monotonic() <= call.deadline:
            return
        behind = ranks_behind(call, self._others, self._liveness)
        if behind:
            moved = self._liveness.moved(behind)
            self._guard.expect(max(call.deadline, moved + call.deadline - call.begun))
        if call is not self._call:  # another has begun meanwhile
            self._guard.expect(self._call.deadline)

    def _break(self, fault: Fault) -> None:
        self.broken = fault.error
        log.error("%s", fault.error)
        self._abort_device()
        with self._report_lock:
            if fault.interrupt and not self._told and not self._done.is_set():
                _raise_in(self._caller, fault.error)


def _raise_in(thread: int, reason: PlatoonError) -> None:
    """Raise in a thread, at its next bytecode, because the result that it waits for will never come."""
    kind = type(
        type(reason).__name__, (type(reason),), {"__init__": lambda self: Exception.__init__(self, str(reason))}
    )
    kind.__module__ = type(reason).__module__
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
