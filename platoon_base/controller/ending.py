"""The end of a job by a signal or by `platoon stop`, and signals for its workers."""

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

# Within this time the same signal to the launchers of several hosts counts once: an engine sends it to each.
_TOGETHER_S = 2.0


class Ending:
    """Ends the workers: after the first signal they have a grace period to save, a second signal kills them.

    Parameters
    ----------
    children : WorkerProcesses
    job_state : JobState
    story : Story
    grace_s : float
        See `JobOptions`.

    Attributes
    ----------
    signal : signal.Signals or None
        The first one received.
    asked : int
        How often the end was requested.
    """

    def __init__(self, children: WorkerProcesses, job_state: JobState, story: Story, grace_s: float) -> None:
        self.signal: signal.Signals | None = None
        self.asked = 0
        self._children = children
        self._job_state = job_state
        self._story = story
        self._grace_s = grace_s
        self._since = -math.inf
        self._signalled_elsewhere = False
        self._passed: dict[signal.Signals, tuple[float, set[int]]] = {}  # when, and which hosts have received it

    def take_own(self, signals: StopSignals) -> None:
        """Handle the signals that this process has received."""
        numbers = signals.take()
        for number in signals.take_for_workers():
            self.pass_on(number)
        for number in numbers:
            if self._signalled_elsewhere:  # an engine signals the launchers of all hosts
                self._signalled_elsewhere = False
            else:
                self._end(number, number.name, self._grace_s)

    def pass_on(self, number: signal.Signals, host: int = 0) -> None:
        """Send a signal that the launcher of a host has received to the workers of all hosts that handle it."""
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
                "%s is passed on to workers that handle it, not to %s (signal.signal in the script sets one). "
                "SIGTERM and `platoon stop` end the job in order",
                number.name,
                lacking,
            )

    def take_of_other_host(self, number: signal.Signals, again: bool) -> None:
        """End the job because the launcher of another host received a signal; kill the workers at its second one."""
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
