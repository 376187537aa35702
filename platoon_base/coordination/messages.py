"""The control messages between a worker and the controller: typed, validated, encoded with MessagePack.

A message is one frame; the channel adds a request id, so that an answer finds its question. Decoding builds plain
data of the types declared below and nothing else: no code, no object of the sender's choice.
"""

from __future__ import annotations

from typing import Annotated, Any, Optional, Union

import msgspec

from platoon_base import errors
from platoon_base.sharding import START, Position
from platoon_base.system.text import legible

__all__ = [
    "MAX_BYTES",
    "MAX_KEPT_BYTES",
    "MAX_NOTE_BYTES",
    "MAX_VECTOR_BYTES",
    "PROTOCOL",
    "CenterReady",
    "CenterRole",
    "Done",
    "Failure",
    "Hello",
    "InitCenter",
    "Keep",
    "Leave",
    "Reduce",
    "Reduced",
    "Reply",
    "Report",
    "Request",
    "Same",
    "UserReply",
    "UserRequest",
    "Vote",
    "Welcome",
    "Withdraw",
    "decode_reply",
    "decode_request",
    "decode_value",
    "encode",
    "encode_value",
]

PROTOCOL = 4
MAX_BYTES = 1 << 20  # a control message is small; arrays travel through shared memory
MAX_NOTE_BYTES = 2048  # so that those of 256 workers fit into one message
MAX_KEPT_BYTES = 1 << 18  # of one worker: it gets all of it back in one message
MAX_DIMENSIONS = 64  # NumPy knows no more
MAX_REPORTED = 1000  # names
MAX_FINGERPRINTS = 4096  # that are remembered, the latest
_MAX_WHY = 500  # characters
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

    ``specs`` holds (name, shape, dtype) of each, ``rule`` the name of the rule's class, ``settings`` the rule with its
    arguments, and ``place`` where the parameters meet.
    """

    specs: list[tuple[str, tuple[int, ...], str]]
    rule: str
    settings: str = ""
    place: str = "host"


class CenterReady(Message, frozen=True, kw_only=True, tag="center-ready"):
    """The worker that was asked to create the center has done so, or failed for the reason given."""

    error: str = ""


class Reduce(Message, frozen=True, kw_only=True, tag="reduce"):
    """A contribution to a sum over all workers; with no pairs it is a meeting.

    ``note`` is a few bytes for all others, such as the address of something. With ``late_pass`` a late joiner that has
    not met the others yet is let through: they may have passed long ago. With ``launched_only`` late joiners are not
    waited for.

    ``vector`` holds little-endian float64 to add element by element; ``shapes``, those of the arrays that it is a part
    of, must be the same for all. With ``drops_center`` the center is forgotten once all have come. With ``binds``
    those who have come need each other from now on: one of them that is lost cannot come again alone.
    """

    name: str
    pairs: dict[str, tuple[float, float]]
    timeout_s: float
    late_pass: bool = False
    launched_only: bool = False
    note: Annotated[bytes, msgspec.Meta(max_length=MAX_NOTE_BYTES)] = b""
    vector: Annotated[bytes, msgspec.Meta(max_length=MAX_VECTOR_BYTES)] = b""
    shapes: list[Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]] = []
    drops_center: bool = False
    binds: bool = False


class Report(Message, frozen=True, kw_only=True, tag="report"):
    """Values for the display and the summary of the job."""

    metrics: Annotated[dict[str, Union[int, float, str]], msgspec.Meta(max_length=MAX_REPORTED)]


class Vote(Message, frozen=True, kw_only=True, tag="vote"):
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


class Withdraw(Message, frozen=True, kw_only=True, tag="withdraw"):
    """A worker waits no longer for what it has asked: something has interrupted it."""


class Leave(Message, frozen=True, kw_only=True, tag="leave"):
    """A worker takes part no more."""


class UserRequest(Message, frozen=True, kw_only=True, tag="user"):
    """A request that the user's own controller answers."""

    req: str
    info: Any = None


# From the controller.


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """The place of the worker in the job; ``late`` if it did not begin with the others.

    ``resume_at`` and ``kept`` are what an earlier process of this rank has left.
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
    """Create the center, or attach to the one that exists; ``resume`` to create it from the job's checkpoint."""

    create: bool
    resume: bool = False


class Reduced(Message, frozen=True, kw_only=True, tag="reduced"):
    """The sums over the ranks named, and their notes; ``lost`` ranks died. ``stop`` is the job's reason, if any."""

    pairs: dict[str, tuple[float, float]]
    ranks: list[int]
    lost: list[int]
    stop: str = ""
    notes: dict[int, bytes] = {}
    vector: bytes = b""


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """Nothing to say but that it worked."""


class UserReply(Message, frozen=True, kw_only=True, tag="user-reply"):
    """What the user's controller answered."""

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


Request = Union[Hello, InitCenter, CenterReady, Reduce, Report, Vote, Keep, Same, Withdraw, Leave, UserRequest]
Reply = Union[Welcome, CenterRole, Reduced, Done, UserReply, Failure]

# Codes of extensions for the user's data: text that UTF-8 cannot hold, such as a path, and a dict with such keys.
_TEXT, _PAIRS = 1, 2


def _of_extension(code: int, data: memoryview) -> Any:
    if code == _TEXT:
        return bytes(data).decode(errors="surrogatepass")
    if code == _PAIRS:
        return dict(_pairs.decode(data))
    raise ValueError(f"got extension {code}, which stands for nothing")


_encoder = msgspec.msgpack.Encoder()
_values: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_of_extension)
_pairs: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[tuple[Any, Any]], ext_hook=_of_extension)
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request, ext_hook=_of_extension)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply, ext_hook=_of_extension)


def encode(message: Message) -> bytes:
    """Encode a message.

    Raises
    ------
    ProtocolError
        If the message holds something that is not plain data, or is larger than `MAX_BYTES`.
    """
    data = encode_value(message)
    if len(data) > MAX_BYTES:
        raise errors.ProtocolError(
            f"got a {type(message).__name__} message of {len(data)} bytes, the limit is {MAX_BYTES}: "
            "control messages are small; share arrays through init_shared_params"
        )
    return data


def encode_value(value: Any) -> bytes:
    """Encode plain data, text of any characters included; anything else raises `ProtocolError`."""
    try:
        try:
            return _encoder.encode(value)
        except UnicodeEncodeError:
            return _encoder.encode(_encodable(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise errors.ProtocolError(
            f"cannot encode {type(value).__name__}: {exc}; send numbers, strings, lists and dicts only"
        ) from exc


def _encodable(value: Any) -> Any:
    """Put legible text into the fields of a message, and into the user's data what gives the same text again."""
    if isinstance(value, Message):
        fields = msgspec.structs.asdict(value).items()
        users = ("info", "answer")
        return msgspec.structs.replace(value, **{n: (_encodable if n in users else _legible)(f) for n, f in fields})
    if isinstance(value, str):
        return value if _is_text(value) else msgspec.msgpack.Ext(_TEXT, value.encode(errors="surrogatepass"))
    if isinstance(value, dict):
        if all(map(_is_text, value)):
            return {key: _encodable(item) for key, item in value.items()}
        pairs = [(_encodable(key), _encodable(item)) for key, item in value.items()]
        return msgspec.msgpack.Ext(_PAIRS, _encoder.encode(pairs))
    return [_encodable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _is_text(value: Any) -> bool:
    return not isinstance(value, str) or legible(value) == value


def _legible(value: Any) -> Any:
    if isinstance(value, dict):
        return {_legible(name): _legible(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_legible(item) for item in value]
    return legible(value) if isinstance(value, str) else value


def decode_value(data: bytes) -> Any:
    """Decode what `encode_value` made."""
    return _values.decode(data)


def decode_request(data: bytes) -> Request:
    """Decode what a worker sent; anything but a valid request raises `ProtocolError`."""
    request: Request = _decode(_requests, data)
    return request


def decode_reply(data: bytes) -> Reply:
    """Decode what the controller answered; anything but a valid reply raises `ProtocolError`."""
    reply: Reply = _decode(_replies, data)
    return reply


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise errors.ProtocolError(f"got a message of {len(data)} bytes, the limit is {MAX_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as exc:
        why = str(exc)[:_MAX_WHY]  # it may quote the message, and the answer must not be larger than a message
        raise errors.ProtocolError(f"got {len(data)} bytes that are no message of protocol {PROTOCOL}: {why}") from exc
