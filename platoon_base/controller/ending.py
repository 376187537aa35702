"""Stops a job after a signal or `platoon stop`, and passes signals on to the workers."""

from __future__ import annotations

import logging
import math
import signal
import time

from platoon_base.controller.outcome import STOPPED_FROM_OUTSIDE
from platoon_base.controller.processes import WorkerProcesses
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination import messages as msg
from platoon_base.coordination.story import Story
from platoon_base.shm.job_state import JobState

__all__ = ["Ending"]

log = logging.getLogger(__name__)

# An engine signals the launcher of each host: within this time these signals count as one.
_TOGETHER_S = 2.0


class Ending:
    """Stops the workers: a first signal starts the grace period, a second one kills them."""

    def __init__(self, children: WorkerProcesses, job_state: JobState, story: Story, grace_s: float) -> None:
        self.signal: signal.Signals | None = None  # the first one received
        self.asked = 0  # how often the end was requested
        self._children = children
        self._job_state = job_state
        self._story = story
        self._grace_s = grace_s
        self._since = -math.inf
        self._signalled_elsewhere = False
        # For each signal the time, and the hosts that have received it.
        self._passed: dict[signal.Signals, tuple[float, set[int]]] = {}

    def take_own(self, signals: StopSignals) -> None:
        """Handle the signals that this process has received."""
        numbers = signals.take()
        for number in signals.take_for_workers():
            self.pass_on(number)
        for number in numbers:
            if self._signalled_elsewhere:  # An engine signals the launchers of all hosts.
                self._signalled_elsewhere = False
            else:
                self._end(number, number.name, self._grace_s)

    def pass_on(self, number: signal.Signals, host: int = 0) -> None:
        """Send a signal to one host's launcher on to the workers of all hosts that handle it."""
        now = time.monotonic()
        since, hosts = self._passed.get(number, (-math.inf, set()))
        if now < since + _TOGETHER_S and host not in hosts:
            hosts.add(host)
            return
        self._passed[number] = now, {host}
        without = self._children.offer(number)
        lacking = f"rank{'s' * (len(without) > 1)} {', '.join(map(str, without))} without a handler"
        self._story.add("job", [], "", f"passes {number.name} on", lacking if without else "")
        if without:
            log.warning(
                "%s is passed to workers that handle it, but not to %s (signal.signal in the "
                "script installs a handler). SIGTERM and `platoon stop` end the job in order",
                number.name,
                lacking,
            )

    def take_of_other_host(self, number: signal.Signals, again: bool) -> None:
        """End the job after a signal to another host's launcher; kill the workers if ``again``."""
        if again or not self.asked:
            self._signalled_elsewhere = not again
            self._end(number, number.name, self._grace_s)

    def take_request(self, request: msg.EndJob) -> None:
        """End the job as `platoon stop` requests, unless it was ending before the request."""
        if request.sent_at > self._since:
            grace_s = self._grace_s if request.grace_s is None else request.grace_s
            self._end(signal.SIGINT, STOPPED_FROM_OUTSIDE, grace_s)

    def _end(self, number: signal.Signals, reason: str, grace_s: float) -> None:
        self.asked += 1
        if self.signal is not None:
            self._story.add("job", [], "", "is ended at once", f"{reason} once more")
            self._children.kill()
        else:
            self._story.add("job", [], "", "stops", reason)
            self._since = time.monotonic()
        self.signal = self.signal or number
        self._job_state.stop(reason)
        self._children.stop(grace_s, number)
