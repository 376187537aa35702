"""The lines of JSON between a courier and its launcher, by its standard input and output."""

from __future__ import annotations

from typing import Optional, Union

import msgspec

from platoon_base.hosts.world import World

__all__ = [
    "Begin",
    "Combine",
    "Exchanged",
    "Filled",
    "Gather",
    "Gathered",
    "Keep",
    "Kept",
    "LeftOut",
    "Listening",
    "Lost",
    "Made",
    "News",
    "NotRestored",
    "Order",
    "Peers",
    "decode_news",
    "decode_order",
    "encode",
]


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The first order: describes the job and the parameters that its workers share.

    Attributes
    ----------
    world : World
    center : (str, str)
        The path and the beginning of the name of the center's memory, see `platoon_base.shm.hidden_names.HiddenName`.
    specs : list of (name, shape, dtype)
    moments : int
        How many of the last ones are moments.
    rule : str
        That of the hosts, see `platoon_base.rules.hosts.hosts_rule`.
    every_s : float
        Seconds from one exchange to the next, at least.
    filled : bool
        Whether this host's center, once there is one, holds the values that all hosts start from.
    memory : int
        A file descriptor of memory that outlives the courier, which it inherits; negative if it needs none.
    resumed : (str, str) or None
        The folder and the key of the checkpoint whose residuals this host goes on with.
    """

    world: World
    center: tuple[str, str]
    specs: list[tuple[str, tuple[int, ...], str]]
    moments: int
    rule: str
    every_s: float
    filled: bool
    memory: int = -1
    resumed: Optional[tuple[str, str]] = None


class Peers(msgspec.Struct, frozen=True, tag="peers"):
    """Where the couriers of other hosts listen: by host an address, a port and a token in hexadecimal digits.

    ``workers`` are those of each host that live, and ``source`` the host with whose values all others begin.
    """

    peers: dict[int, tuple[str, int, str]]
    workers: dict[int, int] = {}
    source: int = 0


class Made(msgspec.Struct, frozen=True, tag="made"):
    """A worker has made the center of this host."""


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A host is lost."""

    host: int


class Gather(msgspec.Struct, frozen=True, tag="gather"):
    """Exchange the contributions of a round that the workers of these hosts have reached.

    Attributes
    ----------
    number : int
    hosts : list of int
    workers : list of int
        How many of each host.
    """

    number: int
    hosts: list[int]
    workers: list[int]


class Combine(msgspec.Struct, frozen=True, tag="combine"):
    """Add up the hosts' contributions to a round, and let the workers go on.

    Attributes
    ----------
    number : int
    hosts : list of int
        Whose contributions count: all hosts of the round have them.
    base : int
        The round that the centers of these are at; a host whose center is behind asks another one for it first.
    source : int
        A host whose center is not behind.
    idle : list of int
        Hosts without workers in this round, to which the source gives its center after the step.
    """

    number: int
    hosts: list[int]
    base: int
    source: int
    idle: list[int]


class Keep(msgspec.Struct, frozen=True, tag="keep"):
    """Save the residual that belongs to a center of which a checkpoint is written.

    It comes after the order to combine round ``number``, and before that to gather round ``number + 2``.

    Attributes
    ----------
    folder : str
        Of the checkpoints, the same path on each host.
    number, stamp, key, kept
        See `platoon_base.checkpoints.residuals.Moment`.
    """

    folder: str
    number: int
    stamp: int
    key: str
    kept: Optional[list[str]]


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """Where this courier listens."""

    address: str
    port: int
    token: str


class Filled(msgspec.Struct, frozen=True, tag="filled"):
    """The center of the host holds the initial values of all hosts."""


class Exchanged(msgspec.Struct, frozen=True, tag="exchanged"):
    """The number of exchanges so far, and the hosts and the duration of the latest one."""

    count: int
    hosts: list[int]
    seconds: float


class Gathered(msgspec.Struct, frozen=True, tag="gathered"):
    """The sender's host has the contributions of all hosts of a round.

    Attributes
    ----------
    number : int
    bases : dict of int to int
        By host, the latest round of the center that its contributions began from.
    """

    number: int
    bases: dict[int, int]


class LeftOut(msgspec.Struct, frozen=True, tag="left-out"):
    """A host takes no part in exchanges with the sender's, for this reason; an empty one once it does again.

    ``never`` says that the two have had no link since both listen.
    """

    host: int
    why: str
    never: bool = False


class Kept(msgspec.Struct, frozen=True, tag="kept"):
    """The residual of a checkpoint is written, or is not, for this reason; empty also if it was said before."""

    key: str
    problem: str = ""


class NotRestored(msgspec.Struct, frozen=True, tag="not-restored"):
    """The residual of the checkpoint that the job goes on from cannot be used."""

    problem: str


Order = Union[Begin, Peers, Made, Lost, Gather, Combine, Keep]
News = Union[Listening, Filled, Exchanged, Gathered, LeftOut, Kept, NotRestored]
_order_decoder: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_new_decoder: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)


def encode(message: Order | News) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def decode_order(line: bytes) -> Order:
    """Return the launcher's message in a line; raises `msgspec.MsgspecError`."""
    return _order_decoder.decode(line)


def decode_news(line: bytes) -> News:
    """Return the courier's message in a line; raises `msgspec.MsgspecError`."""
    return _new_decoder.decode(line)
