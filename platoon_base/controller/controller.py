"""The loop that feeds the coordinator: messages, ended processes, timers, signals. It sleeps until one comes."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from platoon_base.channels.base import ServerChannel
from platoon_base.channels.server import ControlServer, UserHandler
from platoon_base.checkpoints.writer import CheckpointWriter, Tally
from platoon_base.controller.departures import fatal, lost_leader, shared_nothing
from platoon_base.controller.other_hosts import OtherHosts
from platoon_base.controller.outcome import (
    STOPPED_FROM_OUTSIDE,
    UNSAVED,
    Reported,
    Result,
    Snapshot,
    first_failure,
    how_far_of,
    stop_cause,
)
from platoon_base.controller.processes import GRACE_S, Exit, WorkerProcesses
from platoon_base.controller.restart_policy import Restart, RestartPolicy, WorkerFailed
from platoon_base.controller.saving import JobSaving
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import Action, CenterMade, CenterSource, RoundMet, Shared
from platoon_base.coordination.budget import Budget, BudgetWatch, Order, Spent
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.story import Story
from platoon_base.errors import PlatoonError
from platoon_base.shm.job_state import JobState, Progress
from platoon_base.shm.movement import Movement
from platoon_base.system.process import pid_namespace

__all__ = ["Controller", "Reported", "Result", "Snapshot"]

log = logging.getLogger(__name__)

_LONGEST_SLEEP_S = 1.0
_SLEEP_WHILE_STOPPING_S = _BUDGET_EVERY_S = 0.05
_RESTART_GRACE_S = 0.8  # nothing that a worker saves then is of use: all go on from the checkpoint


class Controller:
    """Serves one job until all of its workers have ended.

    Parameters
    ----------
    server : ServerChannel
    job_state : JobState
    coordinator : Coordinator
    children : WorkerProcesses
        The workers that were started; late joiners are added here.
    holds_lock : callable
        ``holds_lock(rank)`` tells whether that worker holds its lock in the memory of the job's state.
    handler : callable, optional
        ``handler(req, rank, info)`` answers the requests that workers send by `Worker.send_req`.
    observer : callable, optional
        Called with a `Snapshot` about every ``observe_every_s`` seconds.
    observe_every_s : float
    on_report : callable, optional
        Called with a `Reported` whenever a worker reports values, while that worker waits.
    budget : Budget, optional
        Ends the job.
    max_restarts : int
        How often, in all, workers that fail are started again.
    checkpointer : CheckpointWriter, optional
    seconds_before : float
        For how long the job has run before it was resumed.
    fail_fast, grace_s : str, float
        See `JobOptions`.
    hosts : OtherHosts, optional
        The other hosts of the job.
    """

    def __init__(
        self,
        server: ServerChannel,
        job_state: JobState,
        coordinator: Coordinator,
        children: WorkerProcesses,
        holds_lock: Callable[[int], bool],
        *,
        handler: UserHandler | None = None,
        observer: Callable[[Snapshot], None] | None = None,
        observe_every_s: float = 0.5,
        on_report: Callable[[Reported], None] | None = None,
        budget: Budget | None = None,
        max_restarts: int = 0,
        checkpointer: CheckpointWriter | None = None,
        seconds_before: float = 0.0,
        fail_fast: str = "never",
        grace_s: float = GRACE_S,
        hosts: OtherHosts | None = None,
    ) -> None:
        self._hosts = hosts
        self._server = server
        self._job_state = job_state
        self._movement = Movement(job_state)
        self._coordinator = coordinator
        self._children = children
        self._holds_lock = holds_lock
        self._pid_namespace = pid_namespace()
        self._fail_fast = fail_fast
        self._fatal: Exit | None = None  # after which the others were ended
        self._ends_all: Exit | None = None  # the same, to start all again
        self._grace_s = grace_s
        self._observer = observer
        self._observe_every_s = observe_every_s
        self._on_report = on_report
        self._budget = None if budget is None else BudgetWatch(budget)
        self._requests = ControlServer(
            coordinator,
            job_state,
            server.reply,
            handler,
            self._save_last,
            self._take_report,
            self._answer_observer,
            self._tell_hosts,
        )
        self._began = time.monotonic()
        self._next_look = self._began
        self._exits: list[Exit] = []
        self._failed: list[Exit] = []  # also those that are started again
        self._ending_since = -math.inf
        self._adopted: set[int] = set()
        self._policy = RestartPolicy(max_restarts, has_checkpoints=checkpointer is not None)
        self._saving: JobSaving | None = None
        if checkpointer is not None:
            self._saving = JobSaving(checkpointer, job_state, coordinator, hosts, seconds_before)
            coordinator.saves_center()
        self._signal: signal.Signals | None = None
        self._signals_taken = 0
        self._signalled_elsewhere = False

    def serve(self, signals: StopSignals | None = None) -> Result:
        """Serve until every worker has ended; SIGINT, SIGTERM and SIGHUP end them all, the second one at once.

        Parameters
        ----------
        signals : StopSignals, optional
            That is open already.

        Raises
        ------
        ConfigurationError
            If the first checkpoint cannot be written.
        """
        with contextlib.nullcontext(signals) if signals is not None else StopSignals() as signals:
            while self._children.running or self._awaits_some_by_hand():
                ready, now = self._take_what_came(signals, self._children.fds, self._sleep_s())
                self._adopt_late_joiners()
                self._children.escalate()
                if ready - {signals.fd} or self._children.stopping or self._children.some_without_fd:
                    for ended in self._children.reap():
                        self._worker_ended(ended)
                self._end_waits(now)
                if self._saving is not None:
                    self._saving.save_if_due(now)
                self._keep_to_budget()
                self._observe(now)
            if self._saving is not None:
                # Served meanwhile, or the other hosts would take this one to be lost.
                serve = functools.partial(self._take_what_came, signals, [], _SLEEP_WHILE_STOPPING_S)
                self._saving.save_the_end(lambda: self._signals_taken < 2, serve)
            self._take_signals(signals.take())
        self._next_look = 0.0
        self._observe(time.monotonic())
        return self._result()

    def _take_what_came(self, signals: StopSignals, fds: Sequence[int], sleep_s: float) -> tuple[set[int], float]:
        """Wait, and take requests and signals; returns the file descriptors that can be read, and the time."""
        requests, ready = self._server.wait(sleep_s, [signals.fd, *fds])
        now = time.monotonic()
        for received in requests:
            self._requests.receive(received, now)
        if signals.fd in ready:
            self._take_signals(signals.take())
        return ready, now

    def _end_waits(self, now: float) -> None:
        """Answer the waits whose deadline has passed."""
        if self._coordinator.next_deadline is not None:
            self._movement.look(now)
            self._requests.carry_out(self._coordinator.tick(now, self._movement.last))

    @property
    def story(self) -> Story:
        """The latest changes in the job."""
        return self._coordinator.story

    @property
    def remaining(self) -> set[int] | None:
        """Ranks that take part or are expected, None before the first is known of; other threads may ask for it."""
        roster = self._coordinator.roster
        return roster.remaining if len(roster) else None

    def _sleep_s(self) -> float:
        if self._children.stopping:
            return _SLEEP_WHILE_STOPPING_S
        now = time.monotonic()
        wake = now + _LONGEST_SLEEP_S
        if self._observer is not None:
            wake = min(wake, self._next_look)
        if self._coordinator.next_deadline is not None:
            wake = min(wake, self._coordinator.next_deadline)
        if self._saving is not None:
            wake = min(wake, self._saving.next_look(now))
        if self._budget is not None:
            wake = min(wake, now + _BUDGET_EVERY_S)
        return max(0.0, wake - now)

    def _take_signals(self, signals: list[signal.Signals]) -> None:
        for number in signals:
            if self._signalled_elsewhere:  # an engine signals the launchers of all hosts
                self._signalled_elsewhere = False
            else:
                self._end(number, number.name, self._grace_s)

    def take_signal(self, number: signal.Signals, again: bool) -> None:
        """End the job because the launcher of another host got a signal; at once if it has got one before."""
        if again or not self._signals_taken:
            self._signalled_elsewhere = not again
            self._end(number, number.name, self._grace_s)

    def _end(self, number: signal.Signals, reason: str, grace_s: float) -> None:
        """End the job as a signal does."""
        self._signals_taken += 1
        if self._signal is not None:
            self.story.add("job", [], "", "is ended at once", f"{reason} once more")
            self._children.kill()  # asked twice: no more patience
        else:
            self.story.add("job", [], "", "stops", reason)
            self._ending_since = time.monotonic()
        self._signal = self._signal or number
        self._job_state.stop(reason)
        self._children.stop(grace_s)

    def _answer_observer(self, request: msg.Watch | msg.AskStory | msg.EndJob) -> msg.Reply:
        """Answer somebody who takes no part in the job."""
        if request.protocol != msg.PROTOCOL:
            text = f"got protocol {request.protocol}, this job speaks {msg.PROTOCOL}; use the version that started it"
            return msg.Failure(kind="ProtocolError", message=text)
        if isinstance(request, msg.Watch):
            return self._snapshot(time.monotonic()).to_message()
        if isinstance(request, msg.AskStory):
            return msg.StoryReply(entries=self.story.entries)
        if request.sent_at > self._ending_since:
            grace_s = self._grace_s if request.grace_s is None else request.grace_s
            self._end(signal.SIGINT, STOPPED_FROM_OUTSIDE, grace_s)
        return msg.Done()

    def _awaits_some_by_hand(self) -> bool:
        """Tell whether workers that the user starts by hand are still to come, though none runs at the moment."""
        roster = self._coordinator.roster
        if not roster.by_hand or self._children.stopping:
            return False
        return not self._exits or (bool(roster.expected) and not any(ended.status for ended in self._exits))

    def _adopt_late_joiners(self) -> None:
        roster = self._coordinator.roster
        for late in [roster[rank] for rank in (roster if roster.by_hand else roster.late)]:
            if not late.phase.present or late.rank in self._children.running:
                continue
            self._adopted.add(late.rank)
            if late.host_index and self._hosts is not None:
                self._hosts.adopt(late)
                continue
            pid = late.pid if late.pid_namespace == self._pid_namespace != 0 else None
            holds_lock = functools.partial(self._holds_lock, late.rank)
            self._children.adopt(late.rank, pid, holds_lock, lambda late=late: late.phase.gone)  # type: ignore[misc]

    def _worker_ended(self, ended: Exit) -> None:
        participant = self._coordinator.roster[ended.rank]
        present = participant.phase.present
        if self._job_state.progress(ended.rank).exchanges:
            self._coordinator.cooperated.add(ended.rank)
        if ended.rank in self._adopted and present:
            ended = ended._replace(status=1)  # only its parent knows the status, but it never said goodbye
        device = f"{participant.device}, " if participant.device else ""
        log_file = f", see {ended.log_file.absolute()}" if ended.log_file is not None else ""
        self._job_state.write_text(ended.rank, "ending", f"{device}{ended}{log_file}")
        lost = ended.status != 0 or present
        shown = self._children.stopping or self._observer is not None
        level = logging.WARNING if lost and not (shown and ended.status) else logging.INFO
        how = " without leaving the job" if present else ""
        log.log(level, "rank %d ended%s: %s%s", ended.rank, how, ended.cause if ended.status else ended, log_file)
        why = f"{ended.cause if ended.status else ended}{how}" if lost else ""
        self._requests.carry_out(self._coordinator.worker_ended(ended.rank, lost, why))
        self._note_failure(ended)
        if not self._start_again(ended):
            self._exits.append(ended)
            self._end_if_fatal(ended)

    def _note_failure(self, ended: Exit) -> None:
        """Keep a worker that failed, and have it shown; the end that a signal has brought about is no failure."""
        follows = ended.failure is None or ended.failure.follows
        if ended.status and not (self._children.stopping and follows):
            self._failed.append(ended)
            self._next_look = 0.0

    def _end_if_fatal(self, ended: Exit) -> None:
        """End the job if the others are not to go on."""
        if self._children.stopping or not self._children.running:
            return
        why = fatal(ended, self._job_state.progress(ended.rank), self._fail_fast)
        if why and ended.rank < self._coordinator.roster.size:
            self._fatal = ended
            log.warning("%s", why)
            self._requests.carry_out(self._coordinator.stop(f"worker {ended.rank} failed"))
            self._children.stop(self._grace_s)

    def _start_again(self, ended: Exit) -> bool:
        """Start a worker that failed again, if the policy says so; tells whether it did."""
        if ended.status == 0:
            return False
        coordinator = self._coordinator
        restart, warning = self._policy.worker_failed(
            WorkerFailed(
                ended.rank,
                adopted=ended.rank in self._adopted,
                stopping=self._children.stopping or self._job_state.stopping,
                bound=coordinator.bound,
                centers_dropped=coordinator.centers_dropped,
                host_lost=coordinator.roster[ended.rank].host_index in coordinator.lost_hosts,
                some_host_lost=bool(coordinator.lost_hosts),
            )
        )
        if warning:
            log.warning("%s", warning)
        if restart is Restart.ALL:
            self.story.add("job", [], "", "ends, to start all workers again", warning)
            self._ends_all = ended
            self._children.stop(_RESTART_GRACE_S)
        return restart is Restart.THIS_ONE and self._start_one_again(ended.rank, warning)

    def _start_one_again(self, rank: int, why: str) -> bool:
        self._coordinator.expect_again(rank, self._job_state.position(rank), why)
        try:
            self._children.start_again(rank)
        except (OSError, PlatoonError) as exc:
            text = f"cannot be started again: {exc}"
            log.error("rank %d %s", rank, text)
            self._requests.carry_out(self._coordinator.worker_ended(rank, lost=True, why=text))
            return False
        return True

    def _save_last(self, shared: Shared) -> None:
        """Save a center that the workers are letting go of."""
        if self._hosts is not None:
            self._hosts.couriers.center_dropped()
        if self._saving is not None:
            self._saving.save_dropped(shared)

    def _tell_hosts(self, event: CenterMade | CenterSource | RoundMet) -> None:
        if self._hosts is None:
            return
        if isinstance(event, RoundMet):
            self._hosts.couriers.round_met(event)
        elif isinstance(event, CenterSource):
            self._hosts.couriers.center_source(event)
        else:
            self._hosts.couriers.center_made(event)

    def decide(self, event: Callable[[Coordinator], list[Action]]) -> None:
        """Let the coordinator decide about an event on another host."""
        self._requests.carry_out(event(self._coordinator))

    def host_returns(self, ranks: Sequence[int]) -> str:
        """Expect the workers of a host that was lost again; returns why not if they cannot come."""
        if self._coordinator.bound:
            return "the workers need each other (averaged gradients), so one that was lost cannot come again alone"
        if self._children.stopping or self._job_state.stopping or not self._children.running:
            return "the job is ending"
        for rank in ranks:
            self._coordinator.expect_again(rank, self._job_state.position(rank), "its host is back")
        self._exits = [ended for ended in self._exits if ended.rank not in ranks]
        return ""

    def _observe(self, now: float) -> None:
        if self._observer is None or now < self._next_look:
            return
        self._next_look = now + self._observe_every_s
        self._observer(self._snapshot(now))

    def _snapshot(self, now: float) -> Snapshot:
        coordinator, tally = self._coordinator, self._tally or Tally()
        return Snapshot(
            list(coordinator.roster.values()),
            {rank: self._job_state.progress(rank) for rank in coordinator.roster},
            coordinator.reported,
            self._job_state.stop_reason or None,  # also that of a signal
            now - self._began,
            tally.missed,
            list(self._failed),
            self._signal is not None,
        )

    def _keep_to_budget(self) -> None:
        if self._budget is None or self._children.stopping:
            return
        order = self._budget.look(self._spent())
        if order is not Order.GO_ON:
            self._requests.carry_out(self._coordinator.stop(self._budget.reason))
        if order is Order.END:
            self._children.stop(self._grace_s)

    def _launched(self) -> list[Progress]:
        return [self._job_state.progress(each.rank) for each in self._coordinator.roster.values() if each.launched]

    def _spent(self) -> Spent:
        launched, now = self._launched(), time.monotonic()
        began = min((each.started for each in launched if each.started), default=now)
        return Spent(sum(each.steps for each in launched) / max(1, len(launched)), now - began, now - self._began)

    def _take_report(self, values: Mapping[str, float | str]) -> None:
        if self._on_report is None:
            return
        shared, launched = self._coordinator.shared, self._launched()
        syncs = sum(each.syncs for each in launched) / max(1, len(launched))
        rule = "" if shared is None else shared.settings or shared.rule
        self._on_report(Reported(values, self._spent(), syncs, rule))

    @property
    def _tally(self) -> Tally | None:
        return None if self._saving is None else self._saving.tally

    def _result(self) -> Result:
        status = max((ended.status for ended in self._exits), default=0)
        for ended in (self._ends_all, self._fatal):
            status = status if ended is None else ended.status  # that of the others is by the signal that ended them
        if self._signal is not None:
            status = 128 + self._signal
        failed = first_failure([ended for ended in self._exits if ended in self._failed])
        # A fatal failure is the reason itself.
        reason = "" if self._fatal is not None else self._job_state.stop_reason
        ended_well = [ended.rank for ended in self._exits if ended.status == 0 and self._fatal is None]
        how_far = how_far_of(self._job_state.progress(rank) for rank in ended_well)
        stopped_by = stop_cause(reason, failed, bool(ended_well), how_far)
        seconds = time.monotonic() - self._began
        reported = dict(self._coordinator.reported)
        interrupted = self._signal is not None
        again = self._policy.all_again(
            interrupted,
            some_ended_well=bool(ended_well),
            checkpoint_unfinished=self._saving is not None and self._saving.writing,
        )
        tally = self._tally
        if tally is not None and tally.unsaved:
            status = status or UNSAVED
        return Result(
            status,
            seconds,
            stopped_by,
            reported,
            self._exits,
            interrupted,
            self._policy.restarts + again,
            again,
            () if interrupted else shared_nothing(self._exits, self._adopted, self._coordinator),
            tally,
            failed,
            lost_leader=self._lost_leader(),
            joined=max(0, len(self._coordinator.roster) - self._coordinator.roster.size),
        )

    def _lost_leader(self) -> str:
        led = [rank for rank in self._coordinator.roster if self._job_state.row(rank)["led"]]
        ended = self._signal is not None or self._fatal is not None
        return "" if ended else lost_leader(self._exits, self._job_state.progress(0).steps, led)
