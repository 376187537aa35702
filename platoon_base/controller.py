"""The loop that feeds the coordinator: messages, ended processes, timers, signals. It sleeps until one comes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from platoon_base.channels.base import ServerChannel
from platoon_base.control_words import ControlWords, Progress
from platoon_base.coordinator import Coordinator, Member, Phase
from platoon_base.dispatch import Dispatcher, UserHandler
from platoon_base.processes import Children, Exit

__all__ = ["Controller", "Result", "Snapshot"]

log = logging.getLogger(__name__)

_LONGEST_SLEEP_S = 1.0
_SLEEP_WHILE_STOPPING_S = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Snapshot(NamedTuple):
    """The state of a job at one moment, for whoever displays it."""

    members: list[Member]
    progress: dict[int, Progress]
    reported: Mapping[str, float | str]
    stop_reason: str | None
    seconds: float


class Result(NamedTuple):
    """How a job ended.

    Attributes
    ----------
    status : int
        The worst exit status of all workers; 128 + n if signal n ended the job.
    seconds : float
        From the start of the controller to the end of the last worker.
    stopped_by : str
        The reason of the common stop, the signal, or "end of script".
    reported : mapping
        The last value of everything that workers reported.
    exits : list of Exit
        In the order in which the processes ended.
    interrupted : bool
        Whether a signal to the controller ended the job.
    """

    status: int
    seconds: float
    stopped_by: str
    reported: Mapping[str, float | str]
    exits: list[Exit]
    interrupted: bool = False

    def with_failures_allowed(self) -> Result:
        """Return a success if one worker ended well and nobody stopped the job; otherwise this result as it is."""
        ended_well = any(ended.status == 0 for ended in self.exits)
        return self._replace(status=0) if ended_well and not self.interrupted else self


class Controller:
    """Serves one job until all of its workers have ended.

    Parameters
    ----------
    server : ServerChannel
    words : ControlWords
    coordinator : Coordinator
    children : Children
        The workers that were started; late joiners are added here.
    handler : callable, optional
        ``handler(req, rank, info)`` answers what workers send with `Worker.send_req`.
    observer : callable, optional
        Called with a `Snapshot` about every ``observe_every_s`` seconds.
    observe_every_s : float
    """

    def __init__(
        self,
        server: ServerChannel,
        words: ControlWords,
        coordinator: Coordinator,
        children: Children,
        *,
        handler: UserHandler | None = None,
        observer: Callable[[Snapshot], None] | None = None,
        observe_every_s: float = 0.5,
    ) -> None:
        self._server = server
        self._words = words
        self._coordinator = coordinator
        self._children = children
        self._observer = observer
        self._observe_every_s = observe_every_s
        self._dispatcher = Dispatcher(coordinator, words, server.reply, handler)
        self._began = time.monotonic()
        self._next_look = self._began
        self._exits: list[Exit] = []
        self._signal: signal.Signals | None = None

    def serve(self) -> Result:
        """Serve until every worker has ended; SIGINT, SIGTERM and SIGHUP end them all within 2 s."""
        with self._signals_as_readable() as wakeup:
            while self._children.running:
                requests, ready = self._server.wait(self._sleep_s(), [wakeup, *self._children.fds])
                now = time.monotonic()
                for received in requests:
                    self._dispatcher.receive(received, now)
                if wakeup in ready:
                    self._take_signals(os.read(wakeup, 64))
                self._adopt_late_joiners()
                self._children.escalate()
                if ready - {wakeup} or self._children.stopping:
                    for ended in self._children.reap():
                        self._worker_ended(ended)
                self._dispatcher.carry_out(self._coordinator.tick(now))
                self._observe(now)
        self._next_look = 0.0
        self._observe(time.monotonic())
        return self._result()

    def _sleep_s(self) -> float:
        if self._children.stopping:
            return _SLEEP_WHILE_STOPPING_S
        now = time.monotonic()
        wake = now + _LONGEST_SLEEP_S
        if self._observer is not None:
            wake = min(wake, self._next_look)
        if self._coordinator.next_deadline is not None:
            wake = min(wake, self._coordinator.next_deadline)
        return max(0.0, wake - now)

    @contextlib.contextmanager
    def _signals_as_readable(self) -> Iterator[int]:
        """Turn signals into bytes of a pipe, so that the one poll of the loop sees them."""
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        os.set_blocking(writable, False)
        # nohup starts its command with SIGHUP ignored, and means it.
        caught = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        handlers = {number: signal.signal(number, lambda *_: None) for number in caught}
        wakeup = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        try:
            yield readable
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(readable)
            os.close(writable)

    def _take_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number not in _SIGNALS:
                continue
            if self._signal is not None:
                self._children.kill()  # asked twice: no more patience
            self._signal = self._signal or signal.Signals(number)
            self._words.stop(self._signal.name)
            self._children.stop()

    def _adopt_late_joiners(self) -> None:
        for member in list(self._coordinator.members.values()):
            joined_late = not member.launched and member.phase in (Phase.JOINED, Phase.TRAINING)
            if not joined_late or member.rank in self._children.running:
                continue
            if not self._children.adopt(member.rank, member.pid):
                self._worker_ended(Exit(member.rank, 0))

    def _worker_ended(self, ended: Exit) -> None:
        member = self._coordinator.members[ended.rank]
        if not member.launched and member.phase in (Phase.JOINED, Phase.TRAINING):
            ended = Exit(ended.rank, 1)  # only its parent knows the status, but it never said goodbye
        self._exits.append(ended)
        device = f"{member.device}, " if member.device else ""
        self._words.write_text(ended.rank, "ending", f"{device}{ended}")
        lost = ended.status != 0 or member.phase in (Phase.JOINED, Phase.TRAINING)
        level = logging.WARNING if lost and not self._children.stopping else logging.INFO
        how = " without leaving the job" if member.phase in (Phase.JOINED, Phase.TRAINING) else ""
        log.log(level, "rank %d ended%s: %s", ended.rank, how, ended)
        self._dispatcher.carry_out(self._coordinator.worker_ended(ended.rank, lost))

    def _observe(self, now: float) -> None:
        if self._observer is None or now < self._next_look:
            return
        self._next_look = now + self._observe_every_s
        members = list(self._coordinator.members.values())
        progress = {member.rank: self._words.progress(member.rank) for member in members}
        self._observer(
            Snapshot(members, progress, self._coordinator.reported, self._coordinator.stop_reason, now - self._began)
        )

    def _result(self) -> Result:
        status = max((ended.status for ended in self._exits), default=0)
        if self._signal is not None:
            status = 128 + self._signal
        stopped_by = self._words.stop_reason or "end of script"
        seconds = time.monotonic() - self._began
        reported = dict(self._coordinator.reported)
        return Result(status, seconds, stopped_by, reported, self._exits, interrupted=self._signal is not None)
