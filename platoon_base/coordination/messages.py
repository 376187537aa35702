"""The control messages between a worker and the controller: plain data of bounded sizes.

A worker sends requests, and the controller answers each with one reply; see
`platoon_base.coordination.encoding`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Optional, Union

import msgspec

from platoon_base import errors
from platoon_base.coordination.story import Entry
from platoon_base.sharding import START, Position

PROTOCOL = 14
MAX_BYTES = 1 << 22  # Control messages are small: arrays use shared memory.
MAX_VALUE_BYTES = 2048  # The values of 1,024 workers fit into one message.
MAX_KEPT_BYTES = 1 << 18  # All kept values of a worker are returned in one message.
MAX_DIMENSIONS = 64  # NumPy has the same limit.
MAX_REPORTED = 1000  # Names.
MAX_FINGERPRINTS = 4096  # Older ones are dropped.
MAX_VECTOR_BYTES = 1 << 19  # Pairs and shapes may take about as much again.

# msgspec reads the annotations at run time, also on Python 3.9, so they need Optional and Union.


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all control messages."""


# From the worker.


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """A process joins, with the rank that it was launched with, or None to get a new one.

    ``pid`` is valid within ``pid_namespace``, the inode of ``/proc/self/ns/pid``; 0 if unknown.
    """

    protocol: int
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    host: str
    device: str
    rank: Optional[int] = None
    pid_namespace: Annotated[int, msgspec.Meta(ge=0)] = 0


class InitCenter(Message, frozen=True, kw_only=True, tag="init-center"):
    """A worker has parameters to share.

    ``specs`` are (name, shape, dtype) of each; the last ``moments`` are moments. ``settings`` is
    the rule with its arguments; ``arguments`` must be equal on all workers; ``location`` is the
    center's memory.
    """

    specs: list[tuple[str, tuple[int, ...], str]]
    rule: str
    moments: int = 0
    settings: str = ""
    arguments: dict[str, str] = {}
    location: str = "host"


class CenterReady(Message, frozen=True, kw_only=True, tag="center-ready"):
    error: str = ""


class CollectiveCall(Message, frozen=True, kw_only=True):
    """Base of the calls of all workers; answered once all have called, or after ``timeout_s``."""

    TITLE: ClassVar[str] = "{name}"  # With the call's own fields.

    timeout_s: float
    patience_s: float = 0.0  # After `AskAgain`: how long a missing rank may make no progress.

    @property
    def title(self) -> str:
        return self.TITLE.format_map(msgspec.structs.asdict(self))


class _NamedCall(CollectiveCall, frozen=True, kw_only=True):
    name: str


class Sum(_NamedCall, frozen=True, kw_only=True, tag="sum"):
    """Pairs and a vector to add, little-endian float64; ``shapes`` must be equal on all workers."""

    pairs: dict[str, tuple[float, float]] = {}
    vector: Annotated[bytes, msgspec.Meta(max_length=MAX_VECTOR_BYTES)] = b""
    shapes: list[Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]] = []
    skips_late: bool = False


class Gather(_NamedCall, frozen=True, kw_only=True, tag="gather"):
    value: Annotated[bytes, msgspec.Meta(max_length=MAX_VALUE_BYTES)]


class FormGroup(_NamedCall, frozen=True, kw_only=True, tag="form-group"):
    """Form the group of all launched workers by a few bytes of each; no member can restart alone then."""

    note: Annotated[bytes, msgspec.Meta(max_length=MAX_VALUE_BYTES)] = b""


class Barrier(_NamedCall, frozen=True, kw_only=True, tag="barrier"):
    """Wait for all; a late joiner that is no participant yet does not wait."""

    TITLE: ClassVar[str] = "barrier {name}"


class Meet(_NamedCall, frozen=True, kw_only=True, tag="meet"):
    """Wait for all, and return the ranks; with ``binds`` a lost worker cannot be restarted alone."""

    TITLE: ClassVar[str] = "meet {name}"

    binds: bool = False


class Round(CollectiveCall, frozen=True, kw_only=True, tag="round"):
    """Wait for all that synchronize in rounds, and return the number of this round.

    It completes without workers that wait in another call: they have fewer rounds to make.
    """

    TITLE: ClassVar[str] = "synchronization round"


class RoundsMade(CollectiveCall, frozen=True, kw_only=True, tag="rounds-made"):
    """The latest round of this host's center, to compare with the other hosts.

    It completes without workers that wait in another call, unless that is a `Round`.
    """

    TITLE: ClassVar[str] = "rounds of all hosts"

    number: int


class AgreeToStop(CollectiveCall, frozen=True, kw_only=True, tag="agree-to-stop"):
    """Return whether the job stops, with the same answer for all."""

    TITLE: ClassVar[str] = "agree_to_stop"


class ReleaseCenter(CollectiveCall, frozen=True, kw_only=True, tag="release-center"):
    """Release the center together, in three stages.

    After "finish" no worker synchronizes any more. In "drop" the controller drops the center, if a
    participant ``shares`` its parameters. After "free" no process has it open: its name is free. A
    late joiner that shares nothing and is no participant yet does not wait.
    """

    stage: Literal["finish", "drop", "free"]
    shares: bool

    @property
    def title(self) -> str:
        return _RELEASE_TITLES[self.stage]


_RELEASE_TITLES = {
    "finish": "release_shared_params",
    "drop": "drop the center",
    "free": "released shared params",
}


class Report(Message, frozen=True, kw_only=True, tag="report"):
    metrics: Annotated[dict[str, Union[int, float, str]], msgspec.Meta(max_length=MAX_REPORTED)]
    settings: bool = False  # True for hyperparameters, which only trackers show.


class StopVote(Message, frozen=True, kw_only=True, tag="stop-vote"):
    reason: str
    policy: str = "any"


class Keep(Message, frozen=True, kw_only=True, tag="keep"):
    name: Annotated[str, msgspec.Meta(max_length=256)]
    value: Annotated[bytes, msgspec.Meta(max_length=MAX_KEPT_BYTES)]


class Same(Message, frozen=True, kw_only=True, tag="same"):
    """A fingerprint to compare with the first of ``name``; ``remedy`` ends the error's text."""

    name: Annotated[str, msgspec.Meta(max_length=256)]
    fingerprint: Annotated[str, msgspec.Meta(max_length=256)]
    remedy: Annotated[str, msgspec.Meta(max_length=1024)]


class TakeLock(Message, frozen=True, kw_only=True, tag="take-lock"):
    """Acquire the lock of the job, unless another worker has it; answered by `LockTaken`."""


class FreeLock(Message, frozen=True, kw_only=True, tag="free-lock"):
    """Release the lock of the job, if this worker has it."""


class Withdraw(Message, frozen=True, kw_only=True, tag="withdraw"):
    """A worker ends its wait in a collective call: it was interrupted."""


class Leave(Message, frozen=True, kw_only=True, tag="leave"):
    """A worker leaves; ``separate`` if it has trained its own model against the script's intent."""

    separate: bool = False


class UserRequest(Message, frozen=True, kw_only=True, tag="user"):
    req: str
    info: Any = None


# From other processes of the same user, which do not join.


class Watch(Message, frozen=True, kw_only=True, tag="watch"):
    """Return the state of the job."""

    protocol: int


class AskStory(Message, frozen=True, kw_only=True, tag="ask-story"):
    """Return the latest changes in the job."""

    protocol: int


class EndJob(Message, frozen=True, kw_only=True, tag="end-job"):
    """End the job as Ctrl-C to the launcher does; ``grace_s`` replaces the launcher's own."""

    protocol: int
    sent_at: float  # On this host's monotonic clock; it identifies requests that waited in a queue.
    grace_s: Optional[Annotated[float, msgspec.Meta(ge=0, le=1e9)]] = None


# From the controller.


class SeenWorker(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    phase: Annotated[int, msgspec.Meta(ge=0, le=7)]
    launched: bool
    device: str
    progress: dict[str, Union[int, float, str]]


class Seen(Message, frozen=True, kw_only=True, tag="seen"):
    workers: list[SeenWorker]
    reported: dict[str, Union[int, float, str]]
    stop: str
    seconds: float
    missed_checkpoints: int = 0
    reported_in: dict[str, int] = {}


class StoryReply(Message, frozen=True, kw_only=True, tag="story"):
    entries: list[Entry]


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """The worker's identity; ``resume_at`` and ``kept`` are from an earlier process of it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    seed: int
    late: bool = False
    resume_at: Position = START
    kept: dict[str, bytes] = {}


class CenterRole(Message, frozen=True, kw_only=True, tag="center-role"):
    """Create the center or attach to it; with ``resume`` it starts from the checkpoint of the job."""

    create: bool
    resume: bool = False


class CollectiveReply(Message, frozen=True, kw_only=True):
    """Base of answers to collective calls: ranks that called, lost ones, reason of the stop."""

    ranks: list[int]
    lost: list[int]
    stop: str = ""


class Met(CollectiveReply, frozen=True, kw_only=True, tag="met"):
    """All have made the call."""


class RoundReached(CollectiveReply, frozen=True, kw_only=True, tag="round-met"):
    number: int


class RoundsCompared(CollectiveReply, frozen=True, kw_only=True, tag="rounds-compared"):
    """The latest round of any center, and the ranks on hosts whose centers are older."""

    latest: int
    behind: list[int]


class Sums(CollectiveReply, frozen=True, kw_only=True, tag="sums"):
    pairs: dict[str, tuple[float, float]]
    vector: bytes = b""


class Gathered(CollectiveReply, frozen=True, kw_only=True, tag="gathered"):
    values: list[bytes]


class AskAgain(Message, frozen=True, kw_only=True, tag="ask-again"):
    """Missing ranks make progress: repeat the call, and wait for up to ``seconds``."""

    seconds: float


class LockTaken(Message, frozen=True, kw_only=True, tag="lock-taken"):
    taken: bool


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """The request was carried out."""


class UserReply(Message, frozen=True, kw_only=True, tag="user-reply"):
    answer: Any = None


class Failure(Message, frozen=True, kw_only=True, tag="failure"):
    """The request was refused; ``kind`` names an error class of this package."""

    kind: str
    message: str

    def to_exception(self) -> errors.PlatoonError:
        error = getattr(errors, self.kind, None) if self.kind in errors.__all__ else None
        if not (isinstance(error, type) and issubclass(error, errors.PlatoonError)):
            error = errors.ProtocolError
        return error(self.message)


Request = Union[
    Hello,
    InitCenter,
    CenterReady,
    Sum,
    Gather,
    FormGroup,
    Barrier,
    Meet,
    Round,
    RoundsMade,
    AgreeToStop,
    ReleaseCenter,
    Report,
    StopVote,
    Keep,
    Same,
    TakeLock,
    FreeLock,
    Withdraw,
    Leave,
    UserRequest,
    Watch,
    AskStory,
    EndJob,
]
Reply = Union[
    Welcome,
    CenterRole,
    Met,
    RoundReached,
    RoundsCompared,
    Sums,
    Gathered,
    AskAgain,
    LockTaken,
    Done,
    UserReply,
    Seen,
    StoryReply,
    Failure,
]
