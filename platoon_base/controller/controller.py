"""The controller's loop: passes requests, process ends, timers and signals to the coordinator."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence

from platoon_base.channels.base import ServerChannel
from platoon_base.channels.server import ControlServer
from platoon_base.controller.departures import Departures
from platoon_base.controller.ending import Ending
from platoon_base.controller.other_hosts import OtherHosts
from platoon_base.controller.outcome import ControllerOptions, Result
from platoon_base.controller.processes import WorkerProcesses
from platoon_base.controller.reporting import Reporting
from platoon_base.controller.saving import JobSaving
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import Action, CenterMade, CenterSource, RoundReached, Shared
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.stopping import BudgetWatch, Order
from platoon_base.shm.job_state import JobState
from platoon_base.shm.liveness import ProgressWatch
from platoon_base.system.process import awake, pid_namespace

__all__ = ["Controller"]

_MAX_SLEEP_S = 1.0
_SLEEP_WHILE_STOPPING_S = _BUDGET_EVERY_S = 0.05


class Controller:
    """Serves one job until all its workers have ended; ``holds_lock(rank)`` polls its lock."""

    def __init__(
        self,
        server: ServerChannel,
        job_state: JobState,
        coordinator: Coordinator,
        children: WorkerProcesses,
        holds_lock: Callable[[int], bool],
        options: ControllerOptions,
        saving: JobSaving | None = None,
        hosts: OtherHosts | None = None,
    ) -> None:
        self.ending = Ending(children, job_state, coordinator.story, options.grace)
        self.departures = Departures(job_state, coordinator, children, self.decide, options, saving)
        self._reporting = Reporting(job_state, coordinator, self.departures, self.ending, saving, options)
        self._requests = ControlServer(
            coordinator,
            job_state,
            server.reply,
            options.handler,
            self._save_last,
            self._reporting.take_report,
            self._answer_observer,
            self.notify_hosts,
        )
        self._server = server
        self._progress_watch = ProgressWatch(job_state)
        self._coordinator = coordinator
        self._children = children
        self._holds_lock = holds_lock
        self._pid_namespace = pid_namespace()
        self._budget = None if options.budget is None else BudgetWatch(options.budget)
        self._grace_s = options.grace
        self._saving = saving
        self._hosts = hosts

    def serve(self, signals: StopSignals | None = None) -> Result:
        """Serve until all workers have ended; a first signal stops them, a second kills them."""
        with contextlib.nullcontext(signals) if signals is not None else StopSignals() as signals:
            while self._children.running or self._awaits_external_workers():
                ready, now = self._take_what_came(signals, self._children.fds, self._sleep_s())
                self._adopt_late_joiners()
                self._children.escalate()
                if ready - {signals.fd} or self._children.stopping or self._children.some_without_fd:
                    for ended in self._children.reap():
                        self.departures.worker_ended(ended)
                self._end_waits()
                if self._saving is not None:
                    self._saving.save_if_due(now)
                self._keep_to_budget()
                self._reporting.observe(now)
            if self._saving is not None:
                # Serve while the last checkpoint is written, or other hosts would count this one as lost.
                serve = functools.partial(self._take_what_came, signals, [], _SLEEP_WHILE_STOPPING_S)
                self._saving.save_the_end(lambda: self.ending.asked < 2, serve)
            self.ending.take_own(signals)
        self._reporting.observe(time.monotonic(), at_once=True)
        return self.departures.result(self._reporting.seconds(), self.ending.signal)

    def _take_what_came(self, signals: StopSignals, fds: Sequence[int], sleep_s: float) -> tuple[set[int], float]:
        """Handle requests and signals, maybe after a wait; return the readable fds and the time."""
        requests, ready = self._server.wait(sleep_s, [signals.fd, *fds])
        now = time.monotonic()
        for received in requests:
            self._requests.receive(received, awake())
        if signals.fd in ready:
            self.ending.take_own(signals)
        return ready, now

    def _end_waits(self) -> None:
        """Answer waiting requests whose deadline has passed."""
        if self._coordinator.next_deadline is not None:
            self._progress_watch.poll()
            self._requests.carry_out(self._coordinator.tick(awake(), self._progress_watch.last))

    @property
    def remaining(self) -> set[int] | None:
        """Ranks present or expected; None before the first is known. Other threads may read it."""
        roster = self._coordinator.roster
        return roster.remaining if len(roster) else None

    def _sleep_s(self) -> float:
        if self._children.stopping:
            return _SLEEP_WHILE_STOPPING_S
        now = time.monotonic()
        wake = min(now + _MAX_SLEEP_S, self._reporting.next_due)
        if self._coordinator.next_deadline is not None:
            wake = min(wake, now + self._coordinator.next_deadline - awake())
        if self._saving is not None:
            wake = min(wake, self._saving.next_poll_at(now))
        if self._budget is not None:
            wake = min(wake, now + _BUDGET_EVERY_S)
        return max(0.0, wake - now)

    def _answer_observer(self, request: msg.Watch | msg.AskStory | msg.EndJob) -> msg.Reply:
        if request.protocol != msg.PROTOCOL:
            text = f"got protocol {request.protocol}, and this job uses {msg.PROTOCOL}: use the version that started it"
            return msg.Failure(kind="ProtocolError", message=text)
        if isinstance(request, msg.Watch):
            return self._reporting.snapshot(time.monotonic()).to_message()
        if isinstance(request, msg.AskStory):
            return msg.StoryReply(entries=self._coordinator.story.entries)
        self.ending.take_request(request)
        return msg.Done()

    def _awaits_external_workers(self) -> bool:
        """Return whether externally launched workers have yet to join, though none runs now."""
        roster = self._coordinator.roster
        if not roster.external or self._children.stopping:
            return False
        exits = self.departures.exits
        return not exits or (bool(roster.expected) and not any(ended.status for ended in exits))

    def _adopt_late_joiners(self) -> None:
        roster = self._coordinator.roster
        for late in [roster[rank] for rank in (roster if roster.external else roster.late)]:
            if not late.phase.present or late.rank in self._children.running:
                continue
            self.departures.adopted.add(late.rank)
            if late.host_index and self._hosts is not None:
                self._hosts.adopt(late)
                continue
            pid = late.pid if late.pid_namespace == self._pid_namespace != 0 else None
            holds_lock = functools.partial(self._holds_lock, late.rank)
            self._children.adopt(late.rank, pid, holds_lock, lambda late=late: late.phase.gone)  # type: ignore[misc]

    def _save_last(self, shared: Shared) -> None:
        """Save a center that the workers are about to release; end the exchanges between hosts."""
        if self._saving is not None:
            self._saving.save_dropped(shared)
        elif self._hosts is not None:
            self._hosts.couriers.center_dropped()

    def notify_hosts(self, event: CenterMade | CenterSource | RoundReached) -> None:
        """Send a center or a round to the couriers of all hosts."""
        if self._hosts is None:
            return
        if isinstance(event, RoundReached):
            self._hosts.couriers.round_met(event)
        elif isinstance(event, CenterSource):
            self._hosts.couriers.center_source(event)
        else:
            self._hosts.couriers.center_made(event)

    def decide(self, event: Callable[[Coordinator], list[Action]]) -> None:
        """Pass an event of another host to the coordinator and carry out its actions."""
        self._requests.carry_out(event(self._coordinator))

    def _keep_to_budget(self) -> None:
        if self._budget is None or self._children.stopping:
            return
        order = self._budget.poll(self._reporting.spent())
        if order is not Order.GO_ON:
            self._requests.carry_out(self._coordinator.stop(self._budget.reason))
        if order is Order.END:
            self._children.stop(self._grace_s)
