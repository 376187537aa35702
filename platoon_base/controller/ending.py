"""The end of a job by a signal or by `platoon stop`."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable

from platoon_base.controller.outcome import STOPPED_FROM_OUTSIDE
from platoon_base.controller.processes import WorkerProcesses
from platoon_base.coordination import messages as msg
from platoon_base.coordination.story import Story
from platoon_base.shm.job_state import JobState

__all__ = ["Ending"]


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

    def take_own(self, signals: Iterable[signal.Signals]) -> None:
        """Handle the signals that this process has received."""
        for number in signals:
            if self._signalled_elsewhere:  # an engine signals the launchers of all hosts
                self._signalled_elsewhere = False
            else:
                self._end(number, number.name, self._grace_s)

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
        self._children.stop(grace_s)
