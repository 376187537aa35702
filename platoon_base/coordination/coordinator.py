"""All decisions of a job, without I/O: a typed request goes in, replies and actions come out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import singledispatchmethod

from platoon_base.coordination import messages as msg
from platoon_base.coordination.actions import Action, AnswerUser, Requester, RoundReached, SendReply, Shared, refuse
from platoon_base.coordination.center_election import CenterElection
from platoon_base.coordination.rendezvous import (
    Complete,
    Outcome,
    Rendezvous,
    drops_center,
    invalid,
    mismatch,
    reply_to,
    terms_of,
)
from platoon_base.coordination.roster import Participant, Roster
from platoon_base.coordination.stopping import StopPoll
from platoon_base.coordination.story import Story
from platoon_base.hosts import ONE_HOST, World
from platoon_base.sharding import Position
from platoon_base.timeouts import LIVENESS_S


class Records:
    """Bounded tables; each call returns the reply. ``reported`` has the last value of each name.

    ``settings`` are the hyperparameters that workers have described.
    """

    def __init__(self) -> None:
        self.reported: dict[str, float | str] = {}
        self.settings: dict[str, float | str] = {}
        # For each name the first fingerprint and its rank.
        self._fingerprints: dict[str, tuple[str, int]] = {}

    def report(self, request: msg.Report) -> msg.Reply:
        reported = {**(self.settings if request.settings else self.reported), **request.metrics}
        if len(reported) > msg.MAX_REPORTED:
            text = f"got {len(reported)} different names of reported values, and the limit is {msg.MAX_REPORTED}"
            return msg.Failure(kind="ConfigurationError", message=f"{text}: use the same names in each report")
        if request.settings:
            self.settings = reported
        else:
            self.reported = reported
        return msg.Done()

    def compare(self, request: msg.Same, rank: int) -> msg.Reply:
        if request.name not in self._fingerprints and len(self._fingerprints) >= msg.MAX_FINGERPRINTS:
            del self._fingerprints[next(iter(self._fingerprints))]
        first, giver = self._fingerprints.setdefault(request.name, (request.fingerprint, rank))
        if request.fingerprint == first:
            return msg.Done()
        text = f"{request.name} differs between rank {giver} and rank {rank}"
        if not _is_checksum(first):
            text += f": rank {rank} has {request.fingerprint}, rank {giver} {first}"
        return msg.Failure(kind="DataMismatchError", message=f"{text}.\n{request.remedy}")

    def keep(self, request: msg.Keep, participant: Participant) -> msg.Reply:
        kept = {**participant.kept, request.name: request.value}
        size = sum(len(name.encode()) + len(value) for name, value in kept.items())
        if size > msg.MAX_KEPT_BYTES:
            text = f"got {size} bytes to keep for rank {participant.rank}, and the limit is {msg.MAX_KEPT_BYTES}"
            return msg.Failure(
                kind="ConfigurationError", message=f"{text}: Worker.keep is for counters and similar values; keep less"
            )
        participant.kept = kept
        return msg.Done()


def _is_checksum(text: str) -> bool:
    """Return whether a fingerprint is 16 hexadecimal digits, which mean nothing to a reader."""
    return len(text) == 16 and not set(text).difference("0123456789abcdef")


# The coordinator has no socket, clock or process. Its caller, the controller or the in-process
# channel, passes requests, ended workers and the time, and carries out the actions that it returns.


class Coordinator:
    """The interface of the decisions: passes each event to its state machine.

    ``cooperated`` are the ranks that have combined values with others. ``bound``: the workers
    depend on each other, so one that is restarted alone cannot take part.
    """

    def __init__(
        self, size: int, seed: int = 0, external: bool = False, world: World = ONE_HOST, story: Story | None = None
    ) -> None:
        self.roster = Roster(size, seed, external, world, story)
        self.story = self.roster.story
        self.story.add("job", [], "", "starts", f"{size} workers" if size else "workers that are started by hand")
        self.cooperated: set[int] = set()
        self.separate: set[int] = set()
        self.bound = False
        self._rounds, self._in_round = 0, list[int]()
        self._election = CenterElection(self.roster)
        self._last_poll_at = 0.0  # The last check of waits for a center of host 0.
        self._rendezvous = Rendezvous(self.roster)
        self._poll = StopPoll(self.story)
        self._records = Records()
        self.lost_hosts: set[int] = set()
        self._lock_holder: int | None = None  # Only on several hosts; on one the kernel has it.

    def restore_earlier_job(
        self,
        positions: Mapping[int, Position],
        kept: Mapping[int, dict[str, bytes]],
        reported: Mapping[str, float | str],
        has_center: bool,
    ) -> None:
        """Start where an earlier job has ended; ``has_center``: there is a center to resume."""
        self.roster.restore_earlier_job(positions, kept)
        self._records.reported.update(reported)
        self._election.resumes = has_center

    @property
    def latest_round(self) -> tuple[int, list[int]]:
        """The number of the latest round, 0 before the first, and its ranks, also lost ones."""
        return self._rounds, self._in_round

    def saves_center(self) -> None:
        """Record that the job saves checkpoints, which contain the center of host 0."""
        self._election.saved = True

    # Events.

    def handle(self, peer: bytes, request_id: bytes, request: msg.Request, now: float) -> list[Action]:
        """Answer one request from ``peer`` at time ``now`` (seconds, any steady clock)."""
        requester = Requester(peer, request_id)
        if isinstance(request, msg.Hello):
            return [SendReply(requester, self.roster.join(request, peer))]
        participant = self.roster.of_peer(peer)
        if participant is None:
            return [refuse(requester, "ProtocolError", "this connection has not sent hello; call connect() first")]
        answer = _answer_to(type(request))
        return answer(self, request, participant, requester, now)

    def worker_ended(self, rank: int, lost: bool, why: str = "") -> list[Action]:
        """Record that a rank's process ended; ``lost`` if it failed or had not left before."""
        participant = self.roster.get(rank)
        if participant is not None:
            participant.ended = True
        if participant is None or participant.phase.gone:
            if participant is not None and lost and participant.phase.left:
                self.roster.depart(participant, lost, why)  # It left and then failed.
            return []
        return self._depart(participant, lost, why)

    def readmit(self, rank: int, resume_at: Position, why: str = "") -> None:
        """Readmit a rank that is gone, from a position, as a late joiner in collective calls."""
        self.lost_hosts.discard(self.roster[rank].host_index)
        self.roster[rank].ended = False
        self.roster.readmit(rank, resume_at, self._election.dropped, why)

    def center_filled(self, host: int) -> list[Action]:
        return self._election.filled(host)

    def host_lost(self, host: int, why: str = "") -> list[Action]:
        """Record that a host is lost, with its center; `worker_ended` follows for its workers."""
        self.story.add("host", [host], "", "lost", why)
        self.lost_hosts.add(host)
        return self._election.mark_lost(host)

    def stop(self, reason: str) -> list[Action]:
        return self._poll.decide(reason)

    def tick(self, now: float, moved: Callable[[int], float] = lambda rank: -math.inf) -> list[Action]:
        """Answer waits past their deadline; ``moved`` is the time of a rank's last progress."""
        actions = self._to_actions(self._rendezvous.tick(now, moved))
        if self._election.waits_for_first_host:
            self._last_poll_at = now
            actions += self._election.poll(now, self._rendezvous.missing_of)
        return actions

    # State, for the controller.

    @property
    def next_deadline(self) -> float | None:
        """The time of the next necessary `tick`, or None."""
        deadline = self._rendezvous.next_deadline
        if not self._election.waits_for_first_host:
            return deadline
        look_at = self._last_poll_at + LIVENESS_S
        return look_at if deadline is None else min(look_at, deadline)

    @property
    def shared(self) -> Shared | None:
        return self._election.shared

    @property
    def centers_dropped(self) -> int:
        return self._election.dropped

    @property
    def stop_reason(self) -> str | None:
        return self._poll.reason

    @property
    def reported(self) -> Mapping[str, float | str]:
        return self._records.reported

    @property
    def settings(self) -> Mapping[str, float | str]:
        """Hyperparameters, with the rule of the shared parameters."""
        shared = {} if self.shared is None else {"rule": self.shared.settings or self.shared.rule}
        return {**shared, **self._records.settings}

    # One method a request, one for all collective calls.

    @singledispatchmethod
    def _answer(self, request: object, participant: Participant, requester: Requester, now: float) -> list[Action]:
        return [refuse(requester, "ProtocolError", f"{type(request).__name__} is not a request of a worker")]

    @_answer.register
    def _(self, request: msg.InitCenter, participant: Participant, requester: Requester, now: float) -> list[Action]:
        return self._election.stand(request, participant, requester)

    @_answer.register
    def _(self, request: msg.CenterReady, participant: Participant, requester: Requester, now: float) -> list[Action]:
        return self._election.created(request, participant, requester)

    @_answer.register
    def _(
        self, request: msg.CollectiveCall, participant: Participant, requester: Requester, now: float
    ) -> list[Action]:
        fault = invalid(request)
        if fault:
            return [refuse(requester, "ProtocolError", fault)]
        terms = terms_of(request)
        if terms.combines:
            self.cooperated.add(participant.rank)
        return self._to_actions(self._rendezvous.enter(request, terms, participant, requester, now))

    @_answer.register
    def _(self, request: msg.Withdraw, participant: Participant, requester: Requester, now: float) -> list[Action]:
        return [*self._to_actions(self._rendezvous.withdraw(participant.rank)), SendReply(requester, msg.Done())]

    @_answer.register
    def _(self, request: msg.StopVote, participant: Participant, requester: Requester, now: float) -> list[Action]:
        refusal = self._poll.cast(participant.rank, request)
        if refusal is not None:
            return [SendReply(requester, refusal)]
        return [*self._poll.count(self.roster.awaited), SendReply(requester, msg.Done())]

    @_answer.register
    def _(self, request: msg.Report, participant: Participant, requester: Requester, now: float) -> list[Action]:
        return [SendReply(requester, self._records.report(request))]

    @_answer.register
    def _(self, request: msg.Keep, participant: Participant, requester: Requester, now: float) -> list[Action]:
        return [SendReply(requester, self._records.keep(request, participant))]

    @_answer.register
    def _(self, request: msg.Same, participant: Participant, requester: Requester, now: float) -> list[Action]:
        return [SendReply(requester, self._records.compare(request, participant.rank))]

    @_answer.register
    def _(self, request: msg.TakeLock, participant: Participant, requester: Requester, now: float) -> list[Action]:
        if self._lock_holder is None:
            self._lock_holder = participant.rank
        return [SendReply(requester, msg.LockTaken(taken=self._lock_holder == participant.rank))]

    @_answer.register
    def _(self, request: msg.FreeLock, participant: Participant, requester: Requester, now: float) -> list[Action]:
        self._free_lock(participant.rank)
        return [SendReply(requester, msg.Done())]

    @_answer.register
    def _(self, request: msg.Leave, participant: Participant, requester: Requester, now: float) -> list[Action]:
        if request.separate:
            self.separate.add(participant.rank)
        return [SendReply(requester, msg.Done()), *self._depart(participant, lost=False)]

    @_answer.register
    def _(self, request: msg.UserRequest, participant: Participant, requester: Requester, now: float) -> list[Action]:
        if request.req.startswith("platoon-"):
            text = f"got request {request.req!r}: names that begin with 'platoon-' are reserved; choose another name"
            return [refuse(requester, "ConfigurationError", text)]
        return [AnswerUser(requester, participant.rank, request.req, request.info)]

    def _free_lock(self, rank: int) -> None:
        if self._lock_holder == rank:
            self._lock_holder = None

    # The order of processing.

    def _depart(self, participant: Participant, lost: bool, why: str = "") -> list[Action]:
        """Process a departure: the roster first, then the center, the vote and the waits."""
        rank = participant.rank
        self._free_lock(rank)
        self.roster.depart(participant, lost, why)
        self._poll.depart(rank)
        actions = self._election.depart(rank)
        actions += self._poll.count(self.roster.awaited)  # Answers of waits have the stop reason.
        return actions + self._to_actions(self._rendezvous.depart(rank))

    def _to_actions(self, outcomes: list[Outcome]) -> list[Action]:
        actions: list[Action] = []
        for outcome in outcomes:
            actions += self._complete(outcome) if isinstance(outcome, Complete) else [outcome]
        return actions

    def _complete(self, complete: Complete) -> list[Action]:
        requesters, calls, binds = complete
        actions: list[Action] = []
        problem = mismatch(calls)
        if problem:
            return [refuse(requester, "LayoutMismatchError", problem) for requester in requesters.values()]
        if drops_center(calls):
            for rank in calls:
                self.roster[rank].for_center = None  # It may share the next center.
            actions = self._election.drop()
        self.bound |= binds
        in_round = [rank for rank, call in calls.items() if isinstance(call, msg.Round)]
        if in_round:
            self._rounds, self._in_round = self._rounds + 1, [*in_round, *self.roster.lost]
        if in_round and self.roster.several_hosts:
            hosts = Counter(self.roster[rank].host_index for rank in in_round)
            actions.append(RoundReached(self._rounds, dict(sorted(hosts.items()))))
        reply = reply_to(calls, self.roster.lost, self.stop_reason or "", self._rounds)
        return [*actions, *(SendReply(requester, reply) for requester in requesters.values())]


# A direct lookup by class: a `singledispatchmethod` creates a bound function for each call, which
# takes longer than most answers.
_answer_to: Callable[[type], Callable[..., list[Action]]] = vars(Coordinator)["_answer"].dispatcher.dispatch
