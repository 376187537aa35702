"""The control messages between a worker and the controller: plain data of declared types and bounded sizes.

A worker sends requests, the controller answers each with one reply. `platoon_base.coordination.encoding` makes bytes of
them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Optional, Union

import msgspec

from platoon_base import errors
from platoon_base.coordination.story import Entry
from platoon_base.sharding import START, Position

__all__ = [
    "MAX_BYTES",
    "MAX_KEPT_BYTES",
    "MAX_VALUE_BYTES",
    "MAX_VECTOR_BYTES",
    "PROTOCOL",
    "AgreeToStop",
    "AskAgain",
    "AskStory",
    "Barrier",
    "CenterReady",
    "CenterRole",
    "CollectiveCall",
    "CollectiveReply",
    "Done",
    "EndJob",
    "Failure",
    "FormGroup",
    "FreeLock",
    "Gather",
    "Gathered",
    "Hello",
    "InitCenter",
    "Keep",
    "Leave",
    "LockTaken",
    "Meet",
    "Message",
    "Met",
    "ReleaseCenter",
    "Reply",
    "Report",
    "Request",
    "Round",
    "RoundReached",
    "RoundsCompared",
    "RoundsMade",
    "Same",
    "Seen",
    "SeenWorker",
    "StopVote",
    "StoryReply",
    "Sum",
    "Sums",
    "TakeLock",
    "UserReply",
    "UserRequest",
    "Watch",
    "Welcome",
    "Withdraw",
]

PROTOCOL = 11
MAX_BYTES = 1 << 22  # a control message is small; arrays travel through shared memory
MAX_VALUE_BYTES = 2048  # of a worker in a collective call, so that those of 1,024 workers fit into one message
MAX_KEPT_BYTES = 1 << 18  # of one worker: it gets all of it back in one message
MAX_DIMENSIONS = 64  # NumPy knows no more
MAX_REPORTED = 1000  # names
MAX_FINGERPRINTS = 4096  # that are remembered, the latest
MAX_VECTOR_BYTES = 1 << 19  # beside pairs and shapes of about as much

# The annotations below are read at run time, on Python 3.9 too, hence Optional and Union.


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all control messages."""


# From the worker.


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """A process joins. ``rank`` is the one it was launched with, or None to be given a new one.

    ``pid`` means something only within ``pid_namespace``, the inode of ``/proc/self/ns/pid``; 0 if unknown.
    """

    protocol: int
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    host: str
    device: str
    rank: Optional[int] = None
    pid_namespace: Annotated[int, msgspec.Meta(ge=0)] = 0


class InitCenter(Message, frozen=True, kw_only=True, tag="init-center"):
    """A worker has parameters to share.

    ``specs`` holds (name, shape, dtype) of each, ``moments`` how many of the last are moments, ``rule`` the name of the
    rule's class, ``settings`` the rule with its arguments, ``arguments`` those that must be the same on all workers, as
    the script has given them, and ``location`` the memory that the center is to be in.
    """

    specs: list[tuple[str, tuple[int, ...], str]]
    rule: str
    moments: int = 0
    settings: str = ""
    arguments: dict[str, str] = {}
    location: str = "host"


class CenterReady(Message, frozen=True, kw_only=True, tag="center-ready"):
    """The worker that was asked to create the center has done so, or failed for the reason given."""

    error: str = ""


class CollectiveCall(Message, frozen=True, kw_only=True):
    """Base of the calls that all workers make; the answer comes when all have come, or after ``timeout_s``.

    One that is made again after `AskAgain` has in ``patience_s`` the time for which a missing rank may stand still.
    """

    timeout_s: float
    patience_s: float = 0.0

    @property
    def title(self) -> str:
        """The name of the call in error texts, and in the job's state of the workers that wait in it."""
        raise NotImplementedError


class _NamedCall(CollectiveCall, frozen=True, kw_only=True):
    name: str

    @property
    def title(self) -> str:
        return self.name


class Sum(_NamedCall, frozen=True, kw_only=True, tag="sum"):
    """Pairs and arrays to add over all workers.

    ``vector`` holds little-endian float64 to add element by element. ``shapes`` are those of the arrays that the vector
    is a part of: they must be the same for all. With ``skips_late`` a late joiner that has not met the others yet gets
    its own values back: the others may have passed long ago.
    """

    pairs: dict[str, tuple[float, float]] = {}
    vector: Annotated[bytes, msgspec.Meta(max_length=MAX_VECTOR_BYTES)] = b""
    shapes: list[Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]] = []
    skips_late: bool = False


class Gather(_NamedCall, frozen=True, kw_only=True, tag="gather"):
    """A small value, encoded, for all workers."""

    value: Annotated[bytes, msgspec.Meta(max_length=MAX_VALUE_BYTES)]


class FormGroup(_NamedCall, frozen=True, kw_only=True, tag="form-group"):
    """A few bytes for the group of all workers launched together, such as the address of something.

    Late joiners are not waited for. The members of a group need each other from now on: one of them that is lost cannot
    come again alone.
    """

    note: Annotated[bytes, msgspec.Meta(max_length=MAX_VALUE_BYTES)] = b""


class Barrier(_NamedCall, frozen=True, kw_only=True, tag="barrier"):
    """Wait for all; a late joiner that has not met the others yet is let through."""

    @property
    def title(self) -> str:
        return f"barrier {self.name}"


class Meet(_NamedCall, frozen=True, kw_only=True, tag="meet"):
    """Wait for all, and learn which ranks have come.

    With ``binds`` the workers that have come need each other from now on: one that is lost cannot come again alone.
    """

    binds: bool = False

    @property
    def title(self) -> str:
        return f"meet {self.name}"


class Round(CollectiveCall, frozen=True, kw_only=True, tag="round"):
    """Wait for all that synchronize in rounds, and learn the number of this round.

    Unlike other calls it goes on without workers that wait in another call: they have fewer rounds to make.
    """

    @property
    def title(self) -> str:
        return "synchronization round"


class RoundsMade(CollectiveCall, frozen=True, kw_only=True, tag="rounds-made"):
    """The latest round that the center of this worker's host has, to be compared with those of the other workers.

    Like `Round` it goes on without workers that wait in another call, as some may share no parameters; but not while
    others wait in a `Round`.
    """

    number: int

    @property
    def title(self) -> str:
        return "rounds of all hosts"


class AgreeToStop(CollectiveCall, frozen=True, kw_only=True, tag="agree-to-stop"):
    """Learn whether the job stops, with the same answer for all."""

    @property
    def title(self) -> str:
        return "agree_to_stop"


class ReleaseCenter(CollectiveCall, frozen=True, kw_only=True, tag="release-center"):
    """Release the center together, in three stages that all workers go through.

    After "finish" nobody synchronizes any more. In "drop" the controller forgets the center, if one of those that come
    ``shares`` its parameters. After "free" nobody has the center open, and its name may be used again. A late joiner
    that shares nothing and has not met the others yet is let through.
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
    """Values for the display and the summary of the job."""

    metrics: Annotated[dict[str, Union[int, float, str]], msgspec.Meta(max_length=MAX_REPORTED)]


class StopVote(Message, frozen=True, kw_only=True, tag="stop-vote"):
    """A worker wants the job to stop."""

    reason: str
    policy: str = "any"


class Keep(Message, frozen=True, kw_only=True, tag="keep"):
    """A value, encoded, for this rank when it comes again."""

    name: Annotated[str, msgspec.Meta(max_length=256)]
    value: Annotated[bytes, msgspec.Meta(max_length=MAX_KEPT_BYTES)]


class Same(Message, frozen=True, kw_only=True, tag="same"):
    """A worker tells its fingerprint of ``name``; the first one that comes holds for all.

    ``remedy`` ends the text of a refusal.
    """

    name: Annotated[str, msgspec.Meta(max_length=256)]
    fingerprint: Annotated[str, msgspec.Meta(max_length=256)]
    remedy: Annotated[str, msgspec.Meta(max_length=1024)]


class TakeLock(Message, frozen=True, kw_only=True, tag="take-lock"):
    """Take the lock of the job, unless another worker has it; answered by `LockTaken`."""


class FreeLock(Message, frozen=True, kw_only=True, tag="free-lock"):
    """Free the lock of the job, if this worker has it."""


class Withdraw(Message, frozen=True, kw_only=True, tag="withdraw"):
    """A worker gives up its wait in a collective call: something has interrupted it."""


class Leave(Message, frozen=True, kw_only=True, tag="leave"):
    """A worker takes part no more; ``separate`` if it has trained a model of its own against its script's intent."""

    separate: bool = False


class UserRequest(Message, frozen=True, kw_only=True, tag="user"):
    """A request that the user's own controller answers."""

    req: str
    info: Any = None


# From somebody of the same user who takes no part, and says no hello.


class Watch(Message, frozen=True, kw_only=True, tag="watch"):
    """Tell how the job stands."""

    protocol: int


class AskStory(Message, frozen=True, kw_only=True, tag="ask-story"):
    """Say what has happened in the job."""

    protocol: int


class EndJob(Message, frozen=True, kw_only=True, tag="end-job"):
    """End the job as Ctrl-C to the launcher does; ``grace_s`` instead of the launcher's own.

    ``sent_at``, of this host's monotonic clock, tells one that waited in a queue from one that was sent after another
    had its effect.
    """

    protocol: int
    sent_at: float
    grace_s: Optional[Annotated[float, msgspec.Meta(ge=0, le=1e9)]] = None


# From the controller.


class SeenWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as others see it: its ``phase`` by number, and its ``progress`` in the order of the job's state."""

    rank: int
    phase: Annotated[int, msgspec.Meta(ge=0, le=7)]
    launched: bool
    device: str
    progress: list[Union[int, float, str]]


class Seen(Message, frozen=True, kw_only=True, tag="seen"):
    """How the job stands; ``stop`` is the reason why it stops, empty while it does not."""

    workers: list[SeenWorker]
    reported: dict[str, Union[int, float, str]]
    stop: str
    seconds: float
    missed_checkpoints: int = 0
    reported_in: dict[str, int] = {}


class StoryReply(Message, frozen=True, kw_only=True, tag="story"):
    """The latest changes in the job, in order."""

    entries: list[Entry]


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """The identity of the worker in the job; ``late`` if it did not begin with the others.

    An earlier process of this rank has left ``resume_at`` and ``kept``.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    seed: int
    late: bool = False
    resume_at: Position = START
    kept: dict[str, bytes] = {}


class CenterRole(Message, frozen=True, kw_only=True, tag="center-role"):
    """Create the center, or attach to the one that exists; ``resume`` to create it from the job's checkpoint.

    ``round`` is the latest round before the center.
    """

    create: bool
    resume: bool = False
    round: int = 0


class CollectiveReply(Message, frozen=True, kw_only=True):
    """Base of the answers to collective calls: the ``ranks`` that came, in order, and the ``lost`` ones, which died.

    ``stop`` is the reason why the job stops; empty while it does not.
    """

    ranks: list[int]
    lost: list[int]
    stop: str = ""


class Met(CollectiveReply, frozen=True, kw_only=True, tag="met"):
    """All have come."""


class RoundReached(CollectiveReply, frozen=True, kw_only=True, tag="round-met"):
    """The number of the round, greater than that of the round before."""

    number: int


class RoundsCompared(CollectiveReply, frozen=True, kw_only=True, tag="rounds-compared"):
    """The latest of the rounds that the centers have, and the ranks on hosts whose centers are behind it."""

    latest: int
    behind: list[int]


class Sums(CollectiveReply, frozen=True, kw_only=True, tag="sums"):
    """The sums over the ranks."""

    pairs: dict[str, tuple[float, float]]
    vector: bytes = b""


class Gathered(CollectiveReply, frozen=True, kw_only=True, tag="gathered"):
    """The values or notes of the ranks, in the same order."""

    values: list[bytes]


class AskAgain(Message, frozen=True, kw_only=True, tag="ask-again"):
    """Some ranks are missing in a collective call, but they go on: make it again, and wait for up to ``seconds``."""

    seconds: float


class LockTaken(Message, frozen=True, kw_only=True, tag="lock-taken"):
    """Whether the worker has the lock of the job now."""

    taken: bool


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """Nothing to say but that it worked."""


class UserReply(Message, frozen=True, kw_only=True, tag="user-reply"):
    """The answer of the user's controller."""

    answer: Any = None


class Failure(Message, frozen=True, kw_only=True, tag="failure"):
    """The request was refused; ``kind`` names an error class of this package."""

    kind: str
    message: str

    def to_exception(self) -> errors.PlatoonError:
        """Build the exception that the worker raises."""
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
