"""The roster: every rank, past or present, with the phase of its life and its connection."""

from __future__ import annotations

import bisect
import enum
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from platoon_base.coordination import messages as msg
from platoon_base.coordination.story import Story
from platoon_base.hosts import ONE_HOST, World
from platoon_base.sharding import START, Position
from platoon_base.system.environment import MAX_WORKERS, STRICT


class Phase(enum.IntEnum):
    """The phase of a rank; messages contain the numbers.

    A late rank has joined a running job, or was restarted, and has made no collective call with the
    others since: no call waits for it.
    """

    EXPECTED = 0
    JOINED = 1
    TRAINING = 2  # It shares the center.
    LEFT = 3
    LOST = 4
    EXPECTED_LATE = 5
    JOINED_LATE = 6
    TRAINING_LATE = 7
    LEFT_LATE = 8

    @property
    def gone(self) -> bool:
        return self in _GONE

    @property
    def left(self) -> bool:
        return self in (Phase.LEFT, Phase.LEFT_LATE)

    @property
    def present(self) -> bool:
        return self in _PRESENT

    @property
    def shares(self) -> bool:
        return self in _SHARES

    @property
    def awaited(self) -> bool:
        """Whether collective calls wait for it."""
        return self in _AWAITED

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


_GONE = (Phase.LEFT, Phase.LOST, Phase.LEFT_LATE)
_LATE = (Phase.EXPECTED_LATE, Phase.JOINED_LATE, Phase.TRAINING_LATE)
_PRESENT = (Phase.JOINED, Phase.TRAINING, Phase.JOINED_LATE, Phase.TRAINING_LATE)
_SHARES = (Phase.TRAINING, Phase.TRAINING_LATE)
_AWAITED = (Phase.EXPECTED, Phase.JOINED, Phase.TRAINING)


class Event(enum.Enum):
    JOIN = "joined"
    SHARE = "shared the center"
    RELEASE = "released the center"
    MEET = "met the others in a collective call"
    PART = "is in another part of the script"
    LEAVE = "left in good order"
    LOSE = "was lost"
    READMIT = "is to come again"


TRANSITIONS: Mapping[Event, Mapping[Phase, Phase]] = {
    Event.JOIN: {
        Phase.EXPECTED: Phase.JOINED,
        Phase.EXPECTED_LATE: Phase.JOINED_LATE,
        Phase.LEFT: Phase.JOINED,  # A script may connect() after close().
        Phase.LEFT_LATE: Phase.JOINED_LATE,
        Phase.LOST: Phase.JOINED,
    },
    Event.SHARE: {
        Phase.JOINED: Phase.TRAINING,
        Phase.TRAINING: Phase.TRAINING,
        Phase.JOINED_LATE: Phase.TRAINING_LATE,
        Phase.TRAINING_LATE: Phase.TRAINING_LATE,
    },
    Event.RELEASE: {Phase.TRAINING: Phase.JOINED, Phase.TRAINING_LATE: Phase.JOINED_LATE},
    Event.MEET: {Phase.JOINED_LATE: Phase.JOINED, Phase.TRAINING_LATE: Phase.TRAINING},
    Event.PART: {Phase.JOINED: Phase.JOINED_LATE, Phase.TRAINING: Phase.TRAINING_LATE},
    Event.LEAVE: {phase: Phase.LEFT_LATE if phase in _LATE else Phase.LEFT for phase in Phase if phase not in _GONE},
    # A worker that has left may still fail.
    Event.LOSE: {phase: Phase.LOST for phase in Phase if phase is not Phase.LOST},
    Event.READMIT: dict.fromkeys(_GONE, Phase.EXPECTED_LATE),
}
"""By event, what each phase becomes; a phase that an event does not have is not possible there."""


_RELAYED = b"h"  # ZeroMQ's own connection names begin with a zero.


def relayed_peer(host: int, peer: bytes) -> bytes:
    """Return the name of a connection to the launcher of another host."""
    return _RELAYED + host.to_bytes(2, "little") + peer


def divided_peer(peer: bytes) -> tuple[int, bytes]:
    """Return the host of a connection, 0 for the first, and the connection's name there."""
    if peer[:1] != _RELAYED:
        return 0, peer
    return int.from_bytes(peer[1:3], "little"), peer[3:]


@dataclass
class Participant:
    rank: int
    launched: bool  # False for late joiners and restarted ranks.
    phase: Phase = Phase.EXPECTED
    peer: bytes = b""
    pid: int = 0
    pid_namespace: int = 0
    host: str = ""
    host_index: int = 0
    device: str = ""  # On several hosts it starts with the host's name.
    local_rank: int = 0
    resume_at: Position = START
    kept: dict[str, bytes] = field(default_factory=dict)
    # The number of dropped centers at a restart: it may share only the center of that time.
    for_center: int | None = None
    ended: bool = False  # The process has ended; it leaves the job shortly before.


class Roster(Mapping[int, Participant]):
    """All participants by rank, including those that are expected or gone.

    The launcher starts ranks 0 .. size - 1. With ``external`` the user starts them: processes
    without a rank get free launched ranks first, and ``size`` 0 is an unknown number. ``changes``
    counts changes of the participants.
    """

    def __init__(
        self, size: int, seed: int, external: bool = False, world: World = ONE_HOST, story: Story | None = None
    ) -> None:
        self.story = Story() if story is None else story
        self._strict = bool(os.environ.get(STRICT))
        self.size = size
        self.seed = seed
        self.external = external
        self._participants = {rank: Participant(rank, launched=True) for rank in range(size)}
        self._by_peer: dict[bytes, Participant] = {}
        # Ordered ranks by host. In a job on one host, launched ranks have no host until they join.
        self._ranks_on: dict[str, list[int]] = {"": list(range(size))}
        if world.several:
            self._ranks_on = {"": [], **{str(host): list(world.ranks_on(host)) for host in range(world.hosts)}}
            for rank, participant in self._participants.items():
                participant.host_index = world.host_of(rank)
        self.several_hosts = world.several
        self._names = world.names or [str(host) for host in range(world.hosts)]
        self.changes = 0
        self._num_live_on: dict[int, int] = {}

    # The controller reads these after each request, so they are cached until `_forget`.
    _CACHED = ("awaited", "num_live", "leader", "late")

    def _forget(self) -> None:
        """Clear the cached values that depend on the participants."""
        self.changes += 1
        for name in self._CACHED:
            self.__dict__.pop(name, None)
        self._num_live_on.clear()

    def __getitem__(self, rank: int) -> Participant:
        return self._participants[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._participants)

    def __len__(self) -> int:
        return len(self._participants)

    @functools.cached_property
    def awaited(self) -> frozenset[int]:
        return frozenset(rank for rank, participant in self._participants.items() if participant.phase.awaited)

    @functools.cached_property
    def num_live(self) -> int:
        return sum(not participant.phase.gone for participant in self._participants.values())

    def num_live_on(self, host: int) -> int:
        if not self.several_hosts:
            return self.num_live
        if host not in self._num_live_on:
            mine = [each for each in self._participants.values() if each.host_index == host]
            self._num_live_on[host] = sum(not participant.phase.gone for participant in mine)
        return self._num_live_on[host]

    @functools.cached_property
    def leader(self) -> int:
        """The lowest rank that is not lost, of those launched if there is one; 0 if all are lost.

        A worker that has left normally stays the leader: its work is done.
        """
        left = [rank for rank, participant in self._participants.items() if participant.phase is not Phase.LOST]
        return min([rank for rank in left if rank < self.size] or left, default=0)

    @property
    def remaining(self) -> set[int]:
        """Ranks that take part or are expected; safe to read from other threads."""
        return {participant.rank for participant in list(self._participants.values()) if not participant.phase.gone}

    @property
    def expected(self) -> list[int]:
        return [
            rank for rank, each in self._participants.items() if each.phase in (Phase.EXPECTED, Phase.EXPECTED_LATE)
        ]

    @functools.cached_property
    def late(self) -> frozenset[int]:
        """Ranks that were not launched with the others."""
        return frozenset(rank for rank, participant in self._participants.items() if not participant.launched)

    @property
    def lost(self) -> list[int]:
        return [rank for rank, participant in self._participants.items() if participant.phase is Phase.LOST]

    def move(self, participant: Participant, event: Event, why: str = "") -> None:
        """Apply an event to a participant's phase and record it; if invalid, raise in tests."""
        before = participant.phase
        after = TRANSITIONS[event].get(before)
        if after is None:
            fault = f"not possible: {event.value}"
            self.story.add("rank", [participant.rank], before.label, fault, why)
            if self._strict:
                raise RuntimeError(f"rank {participant.rank} {event.value}, which is {before.label}: {why}")
        elif after is not before:
            participant.phase = after
            self.story.add("rank", [participant.rank], before.label, after.label, why)

    def of_peer(self, peer: bytes) -> Participant | None:
        return self._by_peer.get(peer)

    def restore_earlier_job(self, positions: Mapping[int, Position], kept: Mapping[int, dict[str, bytes]]) -> None:
        """Start the launched ranks where those of an earlier job have ended."""
        for rank, participant in self.items():
            participant.resume_at = positions.get(rank, START)
            participant.kept = dict(kept.get(rank, {}))

    def join(self, hello: msg.Hello, peer: bytes) -> msg.Welcome | msg.Failure:
        """Admit a process, to the rank that it was launched with or to a new one."""
        if hello.protocol != msg.PROTOCOL:
            text = f"got protocol {hello.protocol}, and this job uses {msg.PROTOCOL}; install one version everywhere"
            return msg.Failure(kind="ProtocolError", message=text)
        if peer in self._by_peer:
            return msg.Failure(kind="ProtocolError", message="this connection has sent hello already")
        rank = self._free_rank() if hello.rank is None else hello.rank
        if rank is None:
            text = f"the job is full: it has {MAX_WORKERS} workers"
            return msg.Failure(kind="ConfigurationError", message=text)
        participant = self.get(rank)
        if hello.rank is not None and participant is None:
            text = f"got rank {rank}, and the job has ranks 0 to {self.size - 1}: pass no rank to join late"
            return msg.Failure(kind="ConfigurationError", message=text)
        if participant is not None and participant.phase.present:
            taken = f"rank {rank} is taken by process {participant.pid} on {participant.host}"
            once = "a process joins once, and its child processes must not join: "
            remedy = 'put connect() under if __name__ == "__main__"'
            return msg.Failure(kind="ConfigurationError", message=f"{taken}; {once}{remedy}")
        host_index = divided_peer(peer)[0]
        if participant is None or participant.phase is not Phase.EXPECTED or participant.host_index != host_index:
            self._forget()
        if participant is None:
            participant = self._participants[rank] = Participant(rank, launched=False, phase=Phase.EXPECTED_LATE)
            bisect.insort(self._ranks_on[self._where(participant)], rank)
        self._ranks_on[self._where(participant)].remove(rank)
        participant.host, participant.host_index = hello.host, host_index
        bisect.insort(self._ranks_on.setdefault(self._where(participant), []), rank)
        participant.peer, participant.pid = peer, hello.pid
        participant.pid_namespace, participant.device = hello.pid_namespace, hello.device
        if self.several_hosts:
            participant.device = f"{self._names[participant.host_index]}:{hello.device}"
        self._by_peer[peer] = participant
        self.move(participant, Event.JOIN, f"process {hello.pid} on {hello.host}")
        return self._welcome(participant)

    def _free_rank(self) -> int | None:
        if self.external:
            for rank in self.expected:
                return rank
        for rank in range(self.size, MAX_WORKERS):
            if rank not in self:
                return rank
        for rank in range(self.size, MAX_WORKERS):  # Ranks of ended late joiners are reused.
            gone = self[rank]
            if gone.phase.gone and gone.ended:
                self._ranks_on[self._where(gone)].remove(rank)
                del self._participants[rank]
                return rank
        return None

    def _where(self, participant: Participant) -> str:
        """Return the host of a participant, the key of `_ranks_on`."""
        return str(participant.host_index) if self.several_hosts else participant.host

    def _welcome(self, participant: Participant) -> msg.Welcome:
        # Ranks that left are still counted.
        here = [self._ranks_on[host] for host in {"", self._where(participant)}]
        participant.local_rank = sum(bisect.bisect_left(ranks, participant.rank) for ranks in here)
        return msg.Welcome(
            rank=participant.rank,
            size=max(self.size, participant.rank + 1),
            local_rank=participant.local_rank,
            local_size=sum(map(len, here)),
            seed=self.seed,
            late=not participant.launched,
            resume_at=participant.resume_at,
            kept=participant.kept,
        )

    def depart(self, participant: Participant, lost: bool, why: str = "") -> None:
        self._forget()
        self.move(participant, Event.LOSE if lost else Event.LEAVE, why)
        self._by_peer.pop(participant.peer, None)

    def readmit(self, rank: int, resume_at: Position, for_center: int, why: str = "") -> None:
        """Readmit a rank that is gone, from a position, as a late joiner in collective calls."""
        gone = self[rank]
        again = Participant(
            rank,
            launched=False,
            phase=gone.phase,
            host=gone.host,
            host_index=gone.host_index,
            device=gone.device,
            resume_at=resume_at,
            kept=gone.kept,
            for_center=for_center,
        )
        self.move(again, Event.READMIT, why)
        if again.phase is Phase.EXPECTED_LATE:
            self._participants[rank] = again
            self._forget()

    def mark_joined(self, ranks: Iterable[int]) -> None:
        """Record that these ranks are participants: collective calls wait for them from now on."""
        for rank in sorted(set(ranks) - self.awaited):
            self.move(self[rank], Event.MEET)
            self._forget()

    def mark_absent(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.move(self[rank], Event.PART)
        self._forget()
