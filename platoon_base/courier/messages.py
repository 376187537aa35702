"""The lines of JSON between a courier and its launcher, by its standard input and output."""

from __future__ import annotations

from typing import Union

import msgspec

from platoon_base.hosts.world import World

__all__ = [
    "Begin",
    "Combine",
    "Exchanged",
    "Filled",
    "Gather",
    "Gathered",
    "LeftOut",
    "Listening",
    "Lost",
    "Made",
    "News",
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
    """

    world: World
    center: tuple[str, str]
    specs: list[tuple[str, tuple[int, ...], str]]
    moments: int
    rule: str
    every_s: float
    filled: bool
    memory: int = -1


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
    """A host was left out of so many consecutive exchanges; 0 once it takes part again."""

    host: int
    exchanges: int


Order = Union[Begin, Peers, Made, Lost, Gather, Combine]
News = Union[Listening, Filled, Exchanged, Gathered, LeftOut]
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
