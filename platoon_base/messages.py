"""The control messages between a worker and the controller: typed, validated, encoded with MessagePack.

A message is one frame; the channel adds a request id, so that an answer finds its question. Decoding builds plain
data of the types declared below and nothing else: no code, no object of the sender's choice.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union

import msgspec

from platoon_base import errors

__all__ = [
    "MAX_BYTES",
    "PROTOCOL",
    "CenterReady",
    "CenterRole",
    "Done",
    "Failure",
    "Hello",
    "InitCenter",
    "Leave",
    "Reduce",
    "Reduced",
    "Reply",
    "Report",
    "Request",
    "UserReply",
    "UserRequest",
    "Vote",
    "Welcome",
    "decode_reply",
    "decode_request",
    "encode",
]

PROTOCOL = 1
MAX_BYTES = 1 << 20  # a control message is small; arrays travel through shared memory

# The annotations below are read at run time on Python 3.9 too, hence the spelled-out typing names.


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all control messages."""


# From the worker.


class Hello(Message, tag="hello"):
    """A process joins. ``rank`` is the one it was launched with, or None to be given a new one."""

    protocol: int
    pid: int
    host: str
    device: str
    rank: Optional[int] = None  # noqa: UP045


class InitCenter(Message, tag="init-center"):
    """A worker has parameters to share: ``specs`` holds (name, shape, dtype) of each."""

    specs: List[Tuple[str, Tuple[int, ...], str]]  # noqa: UP006
    rule: str


class CenterReady(Message, tag="center-ready"):
    """The worker that was asked to create the center has done so."""


class Reduce(Message, tag="reduce"):
    """A contribution to a sum over all workers; with no pairs it is a barrier."""

    name: str
    pairs: Dict[str, Tuple[float, float]]  # noqa: UP006
    timeout_s: float


class Report(Message, tag="report"):
    """Values for the display and the summary of the job."""

    metrics: Dict[str, Union[int, float, str]]  # noqa: UP006, UP007


class Vote(Message, tag="vote"):
    """A worker wants the job to stop."""

    reason: str
    policy: str = "any"


class Leave(Message, tag="leave"):
    """A worker takes part no more."""


class UserRequest(Message, tag="user"):
    """A request that the user's own controller answers."""

    req: str
    info: Any = None


# From the controller.


class Welcome(Message, tag="welcome"):
    """The place of the worker in the job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    seed: int


class CenterRole(Message, tag="center-role"):
    """Create the center, or attach to the one that exists."""

    create: bool


class Reduced(Message, tag="reduced"):
    """The sums over the ranks named; ``lost`` ranks died before they could contribute."""

    pairs: Dict[str, Tuple[float, float]]  # noqa: UP006
    ranks: List[int]  # noqa: UP006
    lost: List[int]  # noqa: UP006


class Done(Message, tag="done"):
    """Nothing to say but that it worked."""


class UserReply(Message, tag="user-reply"):
    """What the user's controller answered."""

    answer: Any = None


class Failure(Message, tag="failure"):
    """The request was refused; ``kind`` names an error class of this package."""

    kind: str
    message: str

    def to_exception(self) -> errors.PlatoonError:
        """Build the exception that the worker raises."""
        error = getattr(errors, self.kind, None) if self.kind in errors.__all__ else None
        if not (isinstance(error, type) and issubclass(error, errors.PlatoonError)):
            error = errors.ProtocolError
        return error(self.message)


Request = Union[Hello, InitCenter, CenterReady, Reduce, Report, Vote, Leave, UserRequest]  # noqa: UP007
Reply = Union[Welcome, CenterRole, Reduced, Done, UserReply, Failure]  # noqa: UP007

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Message) -> bytes:
    """Encode a message.

    Raises
    ------
    ProtocolError
        If the message holds something that is not plain data, or is larger than `MAX_BYTES`.
    """
    try:
        data = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise errors.ProtocolError(
            f"cannot encode {type(message).__name__}: {exc}; send numbers, strings, lists and dicts only"
        ) from exc
    if len(data) > MAX_BYTES:
        raise errors.ProtocolError(
            f"got a {type(message).__name__} message of {len(data)} bytes, the limit is {MAX_BYTES}: "
            "control messages are small; share arrays through init_shared_params"
        )
    return data


def decode_request(data: bytes) -> Request:
    """Decode what a worker sent; anything but a valid request raises `ProtocolError`."""
    return _decode(_requests, data)


def decode_reply(data: bytes) -> Reply:
    """Decode what the controller answered; anything but a valid reply raises `ProtocolError`."""
    return _decode(_replies, data)


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise errors.ProtocolError(f"got a message of {len(data)} bytes, the limit is {MAX_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise errors.ProtocolError(
            f"got {len(data)} bytes that are no message of protocol {PROTOCOL}: {exc}"
        ) from exc
