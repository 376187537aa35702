"""The worker's side of the control messages; refusals become exceptions."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from platoon_base.channels import ClientChannel
from platoon_base.channels.call_lock import CallLock
from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import decode_reply, decode_value, encode, encode_value
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, PlatoonError, ProtocolError, WorkerLostError
from platoon_base.shm.phases import WAITING, PhaseClock
from platoon_base.system.environment import REPORTS_AT_ONCE
from platoon_base.system.text import to_bytes
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=msg.CollectiveReply)

_MIN_TIMEOUT_S = 0.05


class ControlClient:
    """Typed requests over a channel.

    ``row`` is this worker's row of the job's state, which shows the call that it waits in;
    ``clock`` is present if ``row`` is. ``meet(everyone)`` is called before each wait in a
    collective call; not all workers join a round. ``finish()`` is called before waits after which
    workers rely on earlier work of the others.
    """

    def __init__(
        self,
        channel: ClientChannel,
        rank: int,
        row: Any = None,
        clock: PhaseClock | None = None,
        meet: Callable[[bool], None] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._channel = channel
        self._rank = rank
        self._row, self._clock, self._meet, self._finish = row, clock, meet, finish
        self._call_lock = CallLock()  # A worker waits in one collective call at a time.
        self._known_lost: set[int] = set()
        self._left = self.combined = False  # Metrics do not count as combined values.
        self._reports = Reports(self._send_values, 0.0 if os.environ.get(REPORTS_AT_ONCE) else EVERY_S)

    def report(self, values: Mapping[str, float | str], timeout_s: float) -> None:
        """Send values for display and summary, at most once a second each; see `Reports`."""
        # Invalid values raise here, not in a later call that sends them.
        encode(msg.Report(metrics=dict(values)))
        self._reports.add(values, timeout_s)

    def send_reports_if_due(self) -> None:
        """Send values that were reported a while ago; no error if there is no answer."""
        if self._reports.pending:
            # Other calls report it.
            with contextlib.suppress(WorkerLostError, CollectiveTimeoutError):
                self._reports.flush_if_due(timeout("answer"))

    def ask(
        self, request: msg.Request | msg.CollectiveCall, expected: type[T] | tuple[type[T], ...], timeout_s: float
    ) -> T:
        """Send reported values, then a request; return its answer, or raise its refusal."""
        if self._reports.pending:
            self._reports.flush(timeout_s)
        return self._ask(request, expected, timeout_s)

    def _send_values(self, values: Mapping[str, float | str], timeout_s: float) -> None:
        self._ask(msg.Report(metrics=dict(values)), msg.Done, timeout_s)

    def _ask(
        self, request: msg.Request | msg.CollectiveCall, expected: type[T] | tuple[type[T], ...], timeout_s: float
    ) -> T:
        reply = decode_reply(self._channel.request(encode(request), timeout_s))
        if isinstance(reply, msg.Failure):
            if self._left and not isinstance(request, msg.Leave):
                raise WorkerLostError("another thread or a signal handler closed this worker's handle meanwhile")
            raise reply.to_exception()
        if not isinstance(reply, expected):
            raise ProtocolError(
                f"got {type(reply).__name__} as the answer to {type(request).__name__}; "
                "install one version of this package everywhere"
            )
        return reply

    def wait_for_all(self, call: msg.CollectiveCall, expected: type[R]) -> R:
        with self._call_lock.take(repr(call.title), call.timeout_s) as left_s:
            if self._finish is not None and isinstance(call, (msg.Barrier, msg.Gather, msg.Meet, msg.Sum)):
                self._finish()
            if self._meet is not None:
                self._meet(not isinstance(call, (msg.Round, msg.RoundsMade)))
            if left_s != call.timeout_s:
                call = msgspec.structs.replace(call, timeout_s=left_s)
            with self._seen_waiting(call.title), self._withdrawn_if_interrupted():
                reply = self._ask_until_all_came(call, expected)
        self.combined = self.combined or isinstance(call, msg.Gather) or bool(getattr(call, "vector", None))
        if set(reply.lost) - self._known_lost:
            log.warning("rank %d: %s was done without the lost ranks %s", self._rank, call.title, reply.lost)
            self._known_lost.update(reply.lost)
        return reply

    def _ask_until_all_came(self, call: msg.CollectiveCall, expected: type[R]) -> R:
        patience_s = call.timeout_s
        while True:
            answers: tuple[type[R | msg.AskAgain], ...] = (expected, msg.AskAgain)
            reply = self.ask(call, answers, call.timeout_s + timeout("answer"))
            if not isinstance(reply, msg.AskAgain):
                return reply
            seconds = min(max(reply.seconds, _MIN_TIMEOUT_S), patience_s)
            call = msgspec.structs.replace(call, timeout_s=seconds, patience_s=patience_s)

    def gather(self, name: str, value: Any, timeout_s: float) -> list[Any]:
        encoded = encode_value(value)
        if len(encoded) > msg.MAX_VALUE_BYTES:
            raise ConfigurationError(
                f"got a value of {len(encoded)} bytes to gather, and the limit is "
                f"{msg.MAX_VALUE_BYTES}: gather is for numbers, strings and short lists; exchange "
                "arrays with sum_arrays or all_gather"
            )
        reply = self.wait_for_all(msg.Gather(name=name, value=encoded, timeout_s=timeout_s), msg.Gathered)
        return [decode_value(other) for other in reply.values]

    @contextlib.contextmanager
    def _seen_waiting(self, name: str) -> Iterator[None]:
        row, clock = self._row, self._clock  # close() may run concurrently.
        if row is None or clock is None:
            yield
            return
        row["waiting_in"] = to_bytes(name, row.dtype["waiting_in"].itemsize)
        row["waits"] += 1  # Odd while inside.
        before = clock.enter(WAITING)
        try:
            yield
        finally:
            clock.leave(before)
            row["waits"] += 1

    @contextlib.contextmanager
    def _withdrawn_if_interrupted(self) -> Iterator[None]:
        """Withdraw this worker from a collective call if Ctrl-C or the like ends the wait."""
        try:
            yield
        except PlatoonError:
            raise
        except BaseException:
            with contextlib.suppress(PlatoonError):
                self.ask(msg.Withdraw(), msg.Done, timeout("answer"))
            raise

    def try_lock(self) -> bool:
        """Try to acquire the lock of a job on several hosts; return whether it is held."""
        return self.ask(msg.TakeLock(), msg.LockTaken, timeout("answer")).taken

    def free_lock(self) -> None:
        """Release the lock of a job on several hosts; leaving releases it too."""
        with contextlib.suppress(WorkerLostError):
            self.ask(msg.FreeLock(), msg.Done, timeout("answer"))

    def close(self, say_goodbye: bool = True, separate: bool = False) -> None:
        """Leave the job and close the channel; ``separate`` is that of `Leave`."""
        self._left = True
        try:
            self._reports.flush(timeout("answer"))
            if say_goodbye:
                self.ask(msg.Leave(separate=separate), msg.Done, timeout("answer"))
        except (WorkerLostError, CollectiveTimeoutError, ProtocolError) as exc:
            log.debug("rank %d left without notice: %s", self._rank, exc)
        finally:
            self._row = None
            self._channel.close()


EVERY_S = 1.0  # The screen is updated once a second.

Values = Mapping[str, "float | str"]


class Reports:
    """Sends values immediately, unless their names were sent just before: then the latest soon.

    A message costs the worker and the controller 0.1 ms each: a hundred reports a second would take
    some percent of a core. There is no thread: the owner must call `flush` before each other
    message and at the end, and `flush_if_due` regularly. ``send(values, timeout_s)`` waits for the
    answer. Values of one name are sent every ``every_s``; 0 sends all. ``pending`` values are not
    sent yet.
    """

    def __init__(self, send: Callable[[Values, float], object], every_s: float = EVERY_S) -> None:
        self._send = send
        self._every_s = every_s
        self._next: dict[str, float] = {}
        self.pending: dict[str, float | str] = {}
        self._due = 0.0

    def add(self, values: Values, timeout_s: float) -> None:
        now = time.monotonic()
        if values and all(now < self._next.get(name, 0.0) for name in values):
            if not self.pending:
                self._due = now + self._every_s
            self.pending.update(values)
        else:
            self._send_all(values, timeout_s)

    def flush_if_due(self, timeout_s: float) -> None:
        if self.pending and time.monotonic() >= self._due:
            self._send_all({}, timeout_s)

    def flush(self, timeout_s: float) -> None:
        if self.pending:
            self._send_all({}, timeout_s)

    def _send_all(self, values: Values, timeout_s: float) -> None:
        # A signal handler may report here: values that it adds to either dict are sent, at worst
        # twice.
        kept, self.pending = self.pending, {}
        together = {**kept, **values}
        try:
            self._send(together, timeout_s)
        except BaseException as exc:
            refused = isinstance(exc, PlatoonError) and not isinstance(exc, (WorkerLostError, CollectiveTimeoutError))
            if values or not refused:
                self.pending = {**kept, **self.pending}  # These values were not refused.
            raise  # Values that are refused alone would be refused before each later message too.
        now = time.monotonic()
        self._next.update(dict.fromkeys(together, now + self._every_s))
