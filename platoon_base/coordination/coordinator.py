"""All decisions of a job, without I/O: a typed request goes in, replies and actions come out.

The coordinator knows no socket, clock or process. Its caller (the controller, or the in-process channel) tells it
what arrived, who ended and what time it is, and carries out the actions that it returns.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import NamedTuple, Union

from platoon_base.coordination import messages as msg
from platoon_base.errors import LayoutMismatchError
from platoon_base.layout import Layout, ParameterSpec
from platoon_base.metrics import VECTOR_ITEM_BYTES, add_pairs, add_vectors
from platoon_base.schedule import STOP_POLICIES, votes_suffice
from platoon_base.sharding import START, Position
from platoon_base.system.environment import MAX_WORKERS

__all__ = [
    "Action",
    "AnswerUser",
    "Asker",
    "CenterDropped",
    "Coordinator",
    "Member",
    "Phase",
    "SendReply",
    "StopJob",
]


class Phase(enum.IntEnum):
    """Where a worker stands in its life; the job's state in shared memory holds the same numbers."""

    EXPECTED = 0
    JOINED = 1
    TRAINING = 2
    LEFT = 3
    LOST = 4

    @property
    def gone(self) -> bool:
        """Whether the worker takes part no more."""
        return self in (Phase.LEFT, Phase.LOST)


@dataclass
class Member:
    """What is known of one rank."""

    rank: int
    launched: bool
    phase: Phase = Phase.EXPECTED
    peer: bytes = b""
    pid: int = 0
    pid_namespace: int = 0
    host: str = ""
    device: str = ""
    local_rank: int = 0
    in_step: bool = False  # it was launched with the others, or has met them in a collective call
    resume_at: Position = START
    kept: dict[str, bytes] = field(default_factory=dict)
    center: int | None = None  # the number of the center that it comes again for

    @property
    def participates(self) -> bool:
        """Whether collective calls wait for it: a late joiner is waited for once it has met the others."""
        return not self.phase.gone and self.in_step


class Asker(NamedTuple):
    """Where an answer goes."""

    peer: bytes
    request_id: bytes


class SendReply(NamedTuple):
    """Send this to a worker."""

    to: Asker
    reply: msg.Reply


class StopJob(NamedTuple):
    """Raise the stop flag for every worker."""

    reason: str


class AnswerUser(NamedTuple):
    """Let the user's controller answer, and reply to the asker."""

    to: Asker
    rank: int
    req: str
    info: object


class Shared(NamedTuple):
    """What the workers share: the layout of their parameters, and the rule by its name and with its arguments."""

    layout: Layout
    rule: str
    settings: str


class CenterDropped(NamedTuple):
    """All workers let go of the center: nobody may open it any more once they are told."""

    shared: Shared


Action = Union[SendReply, StopJob, AnswerUser, CenterDropped]


@dataclass
class _Waiting:
    asker: Asker
    request: msg.Reduce
    deadline: float


@dataclass
class _Center:
    layout: Layout
    rule: str
    settings: str
    place: str
    creator: int
    ready: bool = False
    waiting: dict[int, Asker] = field(default_factory=dict)


class Coordinator:
    """Membership, the creation of the center, sums over workers, votes to stop, reported values.

    Parameters
    ----------
    size : int
        Number of workers that the launcher starts: ranks 0 .. size - 1.
    seed : int
        Common to all workers.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = size
        self.seed = seed
        self.members = {rank: Member(rank, launched=True, in_step=True) for rank in range(size)}
        self.stop_reason: str | None = None
        self.reported: dict[str, float | str] = {}
        self.centers_dropped = 0
        self.cooperated: set[int] = set()  # ranks that have combined something with others
        self.bound = False  # the workers need each other: one that comes again alone has no part
        self._ranks: dict[bytes, int] = {}
        self._center: _Center | None = None
        self._reductions: dict[str, dict[int, _Waiting]] = {}
        self._voters: set[int] = set()
        self._vote: msg.Vote | None = None
        self._resume_center = False
        self._fingerprints: dict[str, tuple[str, int]] = {}  # of each name, and the rank that gave it first

    def take_up(
        self,
        positions: Mapping[int, Position],
        kept: Mapping[int, dict[str, bytes]],
        reported: Mapping[str, float | str],
        has_center: bool,
    ) -> None:
        """Begin where an earlier job has ended; ``has_center`` tells whether there is a center to begin with."""
        for rank, member in self.members.items():
            member.resume_at = positions.get(rank, START)
            member.kept = dict(kept.get(rank, {}))
        self.reported.update(reported)
        self._resume_center = has_center

    # What happens to a job.

    def handle(self, peer: bytes, request_id: bytes, request: msg.Request, now: float) -> list[Action]:
        """Answer one request that arrived from ``peer`` at time ``now`` (seconds, any steady clock)."""
        asker = Asker(peer, request_id)
        if isinstance(request, msg.Hello):
            return self._hello(request, asker)
        rank = self._ranks.get(peer)
        if rank is None:
            return [_refuse(asker, "ProtocolError", "this connection has not said hello; call connect() first")]
        return self._answer(request, self.members[rank], asker, now)

    def worker_ended(self, rank: int, lost: bool) -> list[Action]:
        """Take note that the process of ``rank`` ended; ``lost`` if it failed or had not left before."""
        member = self.members.get(rank)
        if member is None or member.phase.gone:
            if member is not None and lost:
                member.phase = Phase.LOST  # it said goodbye on its way down
            return []
        return self._depart(member, Phase.LOST if lost else Phase.LEFT)

    def expect_again(self, rank: int, resume_at: Position) -> None:
        """Let a rank that is gone come again: it goes on at a position, and as a late joiner in collective calls."""
        gone = self.members[rank]
        self.members[rank] = Member(
            rank,
            launched=False,
            host=gone.host,
            device=gone.device,
            resume_at=resume_at,
            kept=gone.kept,
            center=self.centers_dropped,
        )

    @property
    def shared(self) -> Shared | None:
        """What the workers share, once the center is there."""
        center = self._center
        ready = center is not None and center.ready
        return Shared(center.layout, center.rule, center.settings) if center is not None and ready else None

    def tick(self, now: float) -> list[Action]:
        """Refuse the waits whose deadline has passed."""
        actions: list[Action] = []
        for name, waiting in list(self._reductions.items()):
            late = [rank for rank, w in waiting.items() if w.deadline <= now]
            text = self._timeout_text(name, self._missing(waiting)) if late else ""
            for rank in late:
                actions.append(_refuse(waiting.pop(rank).asker, "CollectiveTimeoutError", text))
            if not waiting:
                del self._reductions[name]
        return actions

    @property
    def next_deadline(self) -> float | None:
        """The time at which `tick` has something to do, or None."""
        return min((w.deadline for waiting in self._reductions.values() for w in waiting.values()), default=None)

    @property
    def participants(self) -> set[int]:
        """Ranks that collective calls wait for."""
        return {rank for rank, member in self.members.items() if member.participates}

    # One method a request.

    @singledispatchmethod
    def _answer(self, request: object, member: Member, asker: Asker, now: float) -> list[Action]:
        return [_refuse(asker, "ProtocolError", f"{type(request).__name__} is not a request of a worker")]

    @_answer.register
    def _init_center(self, request: msg.InitCenter, member: Member, asker: Asker, now: float) -> list[Action]:
        layout = Layout(tuple(ParameterSpec(*spec) for spec in request.specs))
        impossible = next((spec for spec in layout.specs if not _possible(spec)), None)
        if impossible is not None or not layout.specs:
            text = "got no parameters" if impossible is None else f"got {impossible} as a parameter"
            return [_refuse(asker, "ConfigurationError", f"{text}: share arrays of floating-point numbers")]
        if member.center not in (None, self.centers_dropped):
            text = "the others have released the parameters that this worker was started again for"
            return [_refuse(asker, "ConfigurationError", f"{text}: there is nothing left for it to do")]
        center = self._center
        if center is None or (center.creator == member.rank and not center.ready and not center.waiting):
            # Also after a failure to create it.
            self._center = _Center(layout, request.rule, request.settings, request.place, creator=member.rank)
            return [self._create(asker)]
        try:
            layout.require_same(center.layout)
        except LayoutMismatchError as exc:
            return [_refuse(asker, "LayoutMismatchError", str(exc))]
        if request.rule != center.rule:
            text = f"got rule {request.rule}, the job's is {center.rule}: a center can follow one rule only"
            return [_refuse(asker, "ConfigurationError", f"{text}; give every worker the same rule")]
        if request.place != center.place:
            text = f"got parameters on the {request.place}, the job's are on the {center.place}: a center has one place"
            return [_refuse(asker, "ConfigurationError", f"{text}; launch with --center host if devices differ")]
        if not center.ready and center.creator == member.rank:
            return [self._create(asker)]
        if not center.ready:
            earlier = center.waiting.pop(member.rank, None)
            center.waiting[member.rank] = asker
            return [] if earlier is None else [_refuse(earlier, "ProtocolError", "asked again meanwhile")]
        member.phase = Phase.TRAINING
        return [SendReply(asker, msg.CenterRole(create=False))]

    @_answer.register
    def _center_ready(self, request: msg.CenterReady, member: Member, asker: Asker, now: float) -> list[Action]:
        center = self._center
        if center is None or center.ready or center.creator != member.rank:
            return [_refuse(asker, "ProtocolError", f"rank {member.rank} was not asked to create the center")]
        if request.error:
            return [SendReply(asker, msg.Done()), *self._replace_creator(center)]
        center.ready, self._resume_center = True, False
        member.phase = Phase.TRAINING
        actions: list[Action] = [SendReply(asker, msg.Done())]
        for rank, waiting in center.waiting.items():
            self.members[rank].phase = Phase.TRAINING
            actions.append(SendReply(waiting, msg.CenterRole(create=False)))
        center.waiting.clear()
        return actions

    @_answer.register
    def _reduce(self, request: msg.Reduce, member: Member, asker: Asker, now: float) -> list[Action]:
        if len(request.vector) % VECTOR_ITEM_BYTES:
            text = f"got a vector of {len(request.vector)} bytes, which are no float64; install one version everywhere"
            return [_refuse(asker, "ProtocolError", text)]
        if math.isnan(request.timeout_s):
            return [_refuse(asker, "ProtocolError", "got timeout_s=nan: a wait that would never end; give seconds")]
        if request.pairs or request.vector or request.note or request.launched_only:  # else it is a mere meeting
            self.cooperated.add(member.rank)
        if request.late_pass and not member.in_step:
            return [SendReply(asker, self._reduced({member.rank: request}))]
        actions = self._end_earlier_wait(member)
        waiting = self._reductions.setdefault(request.name, {})
        waiting[member.rank] = _Waiting(asker, request, now + request.timeout_s)
        return actions + (self._complete(request.name) or self._refuse_cross_wait())

    def _end_earlier_wait(self, member: Member) -> list[Action]:
        """A worker waits for one thing at a time: it has given up what it waited for before."""
        actions: list[Action] = []
        for name, waiting in list(self._reductions.items()):
            earlier = waiting.pop(member.rank, None)
            if earlier is not None:
                actions.append(_refuse(earlier.asker, "ProtocolError", "asked for something else meanwhile"))
                if not waiting:
                    del self._reductions[name]
        return actions

    @_answer.register
    def _report(self, request: msg.Report, member: Member, asker: Asker, now: float) -> list[Action]:
        reported = {**self.reported, **request.metrics}
        if len(reported) > msg.MAX_REPORTED:
            text = f"got {len(reported)} different names of reported values, the limit is {msg.MAX_REPORTED}"
            return [_refuse(asker, "ConfigurationError", f"{text}: report under the same names again")]
        self.reported = reported
        return [SendReply(asker, msg.Done())]

    @_answer.register
    def _vote_to_stop(self, request: msg.Vote, member: Member, asker: Asker, now: float) -> list[Action]:
        if request.policy not in STOP_POLICIES:
            text = f"got stop policy {request.policy!r}: it must be one of {', '.join(STOP_POLICIES)}"
            return [_refuse(asker, "ConfigurationError", text)]
        self._voters.add(member.rank)
        self._vote = request
        return [*self._count_votes(), SendReply(asker, msg.Done())]

    @_answer.register
    def _keep(self, request: msg.Keep, member: Member, asker: Asker, now: float) -> list[Action]:
        kept = {**member.kept, request.name: request.value}
        size = sum(len(name.encode()) + len(value) for name, value in kept.items())
        if size > msg.MAX_KEPT_BYTES:
            text = f"got {size} bytes to keep for rank {member.rank}, the limit is {msg.MAX_KEPT_BYTES}"
            return [_refuse(asker, "ConfigurationError", f"{text}: it is for counters and the like; keep less")]
        member.kept = kept
        return [SendReply(asker, msg.Done())]

    @_answer.register
    def _same(self, request: msg.Same, member: Member, asker: Asker, now: float) -> list[Action]:
        if request.name not in self._fingerprints and len(self._fingerprints) >= msg.MAX_FINGERPRINTS:
            del self._fingerprints[next(iter(self._fingerprints))]
        first, giver = self._fingerprints.setdefault(request.name, (request.fingerprint, member.rank))
        if request.fingerprint == first:
            return [SendReply(asker, msg.Done())]
        text = f"{request.name} differs: rank {member.rank} has {request.fingerprint}, rank {giver} {first}"
        return [_refuse(asker, "ConfigurationError", f"{text}. {request.remedy}")]

    @_answer.register
    def _withdraw(self, request: msg.Withdraw, member: Member, asker: Asker, now: float) -> list[Action]:
        return [*self._end_earlier_wait(member), SendReply(asker, msg.Done())]

    @_answer.register
    def _leave(self, request: msg.Leave, member: Member, asker: Asker, now: float) -> list[Action]:
        return [SendReply(asker, msg.Done()), *self._depart(member, Phase.LEFT)]

    @_answer.register
    def _user(self, request: msg.UserRequest, member: Member, asker: Asker, now: float) -> list[Action]:
        if request.req.startswith("platoon-"):
            text = f"got request {request.req!r}: names that begin with 'platoon-' are reserved; choose another"
            return [_refuse(asker, "ConfigurationError", text)]
        return [AnswerUser(asker, member.rank, request.req, request.info)]

    # What they share.

    def _hello(self, hello: msg.Hello, asker: Asker) -> list[Action]:
        if hello.protocol != msg.PROTOCOL:
            text = f"got protocol {hello.protocol}, this job speaks {msg.PROTOCOL}; install one version everywhere"
            return [_refuse(asker, "ProtocolError", text)]
        if asker.peer in self._ranks:
            return [_refuse(asker, "ProtocolError", "this connection has said hello already")]
        rank = self._free_rank() if hello.rank is None else hello.rank
        if rank is None:
            return [_refuse(asker, "ConfigurationError", f"the job is full: it has had {MAX_WORKERS} workers")]
        member = self.members.get(rank)
        if hello.rank is not None and member is None:
            text = f"got rank {rank}: the job has ranks 0 to {self.size - 1}; leave the rank out to join late"
            return [_refuse(asker, "ConfigurationError", text)]
        if member is not None and member.phase in (Phase.JOINED, Phase.TRAINING):
            text = f"rank {rank} is taken by process {member.pid} on {member.host}; a process joins once"
            return [_refuse(asker, "ConfigurationError", text)]
        if member is None:
            member = self.members[rank] = Member(rank, launched=False)
        member.phase, member.peer, member.pid = Phase.JOINED, asker.peer, hello.pid
        member.pid_namespace, member.host, member.device = hello.pid_namespace, hello.host, hello.device
        self._ranks[asker.peer] = rank
        return [SendReply(asker, self._welcome(member))]

    def _welcome(self, member: Member) -> msg.Welcome:
        size = max(self.size, member.rank + 1)
        # Those not heard of yet were launched on this host; those that left keep their place in the count.
        here = [m for m in self.members.values() if m.host in ("", member.host)]
        member.local_rank = sum(m.rank < member.rank for m in here)
        return msg.Welcome(
            rank=member.rank,
            size=size,
            local_rank=member.local_rank,
            local_size=len(here),
            seed=self.seed,
            late=not member.launched,
            resume_at=member.resume_at,
            kept=member.kept,
        )

    def _free_rank(self) -> int | None:
        return next((rank for rank in range(self.size, MAX_WORKERS) if rank not in self.members), None)

    def _depart(self, member: Member, phase: Phase) -> list[Action]:
        member.phase = phase
        self._ranks.pop(member.peer, None)
        self._voters.discard(member.rank)
        actions: list[Action] = []
        center = self._center
        if center is not None and not center.ready:
            center.waiting.pop(member.rank, None)
            if center.creator == member.rank:
                actions += self._replace_creator(center)
        actions += self._count_votes()
        for name in list(self._reductions):
            self._reductions[name].pop(member.rank, None)
            actions += self._complete(name)
        return actions + self._refuse_cross_wait()

    def _replace_creator(self, center: _Center) -> list[Action]:
        if not center.waiting:
            self._center = None
            return []
        center.creator, asker = min(center.waiting.items())
        del center.waiting[center.creator]
        return [self._create(asker)]

    def _create(self, asker: Asker) -> SendReply:
        return SendReply(asker, msg.CenterRole(create=True, resume=self._resume_center))

    def _missing(self, waiting: dict[int, _Waiting]) -> set[int]:
        late = {rank for rank, member in self.members.items() if not member.launched}
        excused = late if any(w.request.launched_only for w in waiting.values()) else set()
        return self.participants - set(waiting) - excused

    def _complete(self, name: str) -> list[Action]:
        waiting = self._reductions[name]
        if not waiting:
            del self._reductions[name]
            return []
        if self._missing(waiting):
            return []
        del self._reductions[name]
        ranks = sorted(waiting)
        requests = {rank: waiting[rank].request for rank in ranks}
        drops = any(request.drops_center for request in requests.values())
        for rank in ranks:
            self.members[rank].in_step = True
            if drops:
                self.members[rank].center = None  # it has met the others: the next center is its own too
        mismatch = _mismatch_text(name, requests)
        if mismatch:
            return [_refuse(w.asker, "LayoutMismatchError", mismatch) for w in waiting.values()]
        dropped = self._forget_center() if drops else []
        self.bound |= any(request.launched_only or request.binds for request in requests.values())
        reply = self._reduced(requests)
        return [*dropped, *(SendReply(w.asker, reply) for w in waiting.values())]

    def _forget_center(self) -> list[Action]:
        """Let the next one that shares parameters make a center; one that is being made now is another's, and stays."""
        if self.shared is None:
            return []
        dropped: list[Action] = [CenterDropped(self.shared)]
        self._center = None
        self.centers_dropped += 1
        for member in self.members.values():
            if member.phase is Phase.TRAINING:
                member.phase = Phase.JOINED
        return dropped

    def _reduced(self, requests: dict[int, msg.Reduce]) -> msg.Reduced:
        return msg.Reduced(
            pairs=add_pairs(request.pairs for request in requests.values()),
            ranks=list(requests),
            lost=[rank for rank, member in self.members.items() if member.phase is Phase.LOST],
            stop=self.stop_reason or "",
            notes={rank: request.note for rank, request in requests.items() if request.note},
            vector=add_vectors(request.vector for request in requests.values()),
        )

    def _refuse_cross_wait(self) -> list[Action]:
        """End all waits at once if everybody waits, but not for the same: no wait could ever end well."""
        names = {rank: name for name, waiting in self._reductions.items() for rank in waiting}
        if not self.participants or not self.participants <= set(names):
            return []
        late = [member for member in self.members.values() if member.participates and not member.launched]
        if late and any(self.members[rank].launched for rank in names):
            # One that came later is at another place: the others go on, and it waits until they come by.
            for member in late:
                member.in_step = False
            return [action for name in list(self._reductions) for action in self._complete(name)]
        where = ", ".join(f"rank {rank} in {names[rank]!r}" for rank in sorted(names))
        text = (
            f"all workers wait, but not for the same: {where}. They must make the same calls in the same order. Has an "
            "exception ended the loop of one of them? Its log tells. Otherwise, "
            "to leave a loop together use StopOnPatience or Worker.agree_to_stop, since should_stop may turn true for "
            "one worker earlier than for another"
        )
        waits = [w for waiting in self._reductions.values() for w in waiting.values()]
        self._reductions.clear()
        return [_refuse(w.asker, "ProtocolError", text) for w in waits]

    def _count_votes(self) -> list[Action]:
        if self._vote is None or self.stop_reason is not None:
            return []
        # The vote of one that came later counts too, though nobody waits for it.
        if not votes_suffice(self._vote.policy, self._voters, self.participants | self._voters):
            return []
        self.stop_reason = self._vote.reason[:256]  # every sum carries it
        return [StopJob(self.stop_reason)]

    def _timeout_text(self, name: str, missing: set[int]) -> str:
        who = ", ".join(f"rank {rank} ({self.members[rank].phase.name.lower()})" for rank in sorted(missing))
        return (
            f"waited in {name!r} for {who}: every worker must make this call; "
            "look into the logs of those ranks, or give a longer timeout_s (PLATOON_TIMEOUT_S sets it for all waits)"
        )


def _possible(spec: ParameterSpec) -> bool:
    known = spec.dtype in ("float16", "float32", "float64", "longdouble", "float128")
    return known and len(spec.shape) <= msg.MAX_DIMENSIONS and all(n >= 0 for n in spec.shape)


def _mismatch_text(name: str, requests: dict[int, msg.Reduce]) -> str:
    """Tell who gave how many values if not all gave arrays of the same shapes; empty if they did."""
    givers: dict[tuple[object, ...], list[int]] = {}
    for rank, request in requests.items():
        givers.setdefault((len(request.vector), *request.shapes), []).append(rank)
    if len(givers) == 1:
        return ""
    given = "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}: {_shapes_text(requests[ranks[0]])}"
        for ranks in givers.values()
    )
    return (
        f"got arrays of different shapes to add in {name!r}: {given}. Every worker must pass the same list of shapes; "
        "a worker that has nothing to add passes zeros"
    )


def _shapes_text(request: msg.Reduce) -> str:
    shapes = request.shapes
    listed = ", ".join(map(str, shapes[:8])) + (", ..." if len(shapes) > 8 else "")
    values = sum(math.prod(shape) for shape in shapes)
    return f"{values} values in {len(shapes)} arrays{f' ({listed})' if shapes else ''}"


def _refuse(asker: Asker, kind: str, message: str) -> SendReply:
    return SendReply(asker, msg.Failure(kind=kind, message=message))
