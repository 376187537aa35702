"""The controller: passes requests, process ends, timers and signals to the coordinator, and reports."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from platoon_base.channels import ServerChannel
from platoon_base.channels.server import ControlServer
from platoon_base.checkpoints.writer import Tally
from platoon_base.controller.departures import Departures
from platoon_base.controller.other_hosts import OtherHosts
from platoon_base.controller.outcome import STOPPED_FROM_OUTSIDE, ControllerOptions, Reported, Result, Snapshot
from platoon_base.controller.processes import WorkerProcesses
from platoon_base.controller.saving import JobSaving
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import Action, CenterDropped, CenterEvent
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.stopping import BudgetWatch, Order, Spent
from platoon_base.coordination.story import Story
from platoon_base.shm.job_state import JobState, Progress
from platoon_base.shm.liveness import ProgressWatch
from platoon_base.system.process import awake, pid_namespace

log = logging.getLogger(__name__)

# An engine signals the launcher of each host: within this time these signals count as one.
_TOGETHER_S = 2.0


class Ending:
    """Stops the workers: a first signal starts the grace period, a second one kills them."""

    def __init__(self, children: WorkerProcesses, job_state: JobState, story: Story, grace_s: float) -> None:
        self.signal: signal.Signals | None = None  # The first signal received.
        self.asked = 0  # How often the end was requested.
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


class Reporting:
    """Calls the observers of a job; ``next_due`` is when to call `observe` next."""

    def __init__(
        self,
        job_state: JobState,
        coordinator: Coordinator,
        departures: Departures,
        ending: Ending,
        saving: JobSaving | None,
        options: ControllerOptions,
    ) -> None:
        self._job_state = job_state
        self._coordinator = coordinator
        self._departures = departures
        self._ending = ending
        self._saving = saving
        self._observer, self._observe_every_s = options.observer, options.observe_every_s
        self._on_report = options.on_report
        self._began = time.monotonic()
        self._shown_failures = 0
        self._epochs: dict[str, int] = {}  # Epoch of each reported value.
        self.next_due = math.inf if self._observer is None else self._began

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def observe(self, now: float, at_once: bool = False) -> None:
        """Call the observer if it is due, or if a worker has failed since the last call."""
        failures = len(self._departures.failed)
        if self._observer is None or not (at_once or now >= self.next_due or failures != self._shown_failures):
            return
        self.next_due, self._shown_failures = now + self._observe_every_s, failures
        self._observer(self.snapshot(now))

    def snapshot(self, now: float) -> Snapshot:
        coordinator = self._coordinator
        tally = Tally() if self._saving is None else self._saving.checkpointer.tally
        return Snapshot(
            list(coordinator.roster.values()),
            {rank: self._job_state.progress(rank) for rank in coordinator.roster},
            coordinator.reported,
            self._job_state.stop_reason or None,  # Signals are included.
            now - self._began,
            tally.missed,
            list(self._departures.failed),
            self._ending.signal is not None,
            saved_checkpoints=tally.written,
            phases={rank: self._job_state.phases(rank) for rank in coordinator.roster},
            reported_in=dict(self._epochs),
            settings=coordinator.settings,
        )

    def spent(self) -> Spent:
        """Return how much of its budget the job has spent."""
        launched, now = self._launched(), time.monotonic()
        began = min((each.started for each in launched if each.started), default=now)
        return Spent(sum(each.steps for each in launched) / max(1, len(launched)), now - began, now - self._began)

    def take_report(self, values: Mapping[str, float | str], rank: int) -> None:
        """Record the epoch of values that a worker has reported, and call the callback."""
        epoch, known = self._job_state.progress(rank).epoch, self._coordinator.reported
        # Epochs of refused reports are dropped.
        kept = {name: epoch for name, epoch in self._epochs.items() if name in known}
        self._epochs = {**kept, **dict.fromkeys(values, epoch)}
        if self._on_report is None:
            return
        shared, launched = self._coordinator.shared, self._launched()
        syncs = sum(each.syncs for each in launched) / max(1, len(launched))
        rule = "" if shared is None else shared.settings or shared.rule
        self._on_report(Reported(values, self.spent(), syncs, rule))

    def _launched(self) -> list[Progress]:
        return [self._job_state.progress(each.rank) for each in self._coordinator.roster.values() if each.launched]


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
            self.handle_center,
            self._reporting.take_report,
            self._answer_observer,
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
            wake = min(wake, self._saving.checkpointer.next_poll_at(now))
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

    def handle_center(self, event: CenterEvent) -> None:
        """Pass an event to the couriers of all hosts; then save a center that the workers release."""
        if self._hosts is not None:
            self._hosts.couriers.take(event)
        if self._saving is not None and isinstance(event, CenterDropped):
            self._saving.save_dropped(event.shared)

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
