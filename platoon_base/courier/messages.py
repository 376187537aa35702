"""The lines of JSON between a courier and its launcher, by standard input and output."""

from __future__ import annotations

from typing import Union

import msgspec

from platoon_base.hosts import World


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Exchange the parameters that the workers share; a launcher starts its courier for it.

    ``moments`` counts the last ``specs``, which are moments. Exchanges begin at least ``every_s``
    apart.
    """

    specs: list[tuple[str, tuple[int, ...], str]]
    moments: int
    rule: str
    every_s: float


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The first order to a courier that was started: the job and what it exchanges.

    ``center`` is the path and the beginning of the name of the center's memory, see
    `platoon_base.shm.segments.HiddenName`. ``filled`` says whether this host's center holds the
    initial values of all hosts. ``memory`` is an inherited file descriptor of memory that outlives
    the courier, or negative.
    """

    world: World
    center: tuple[str, str]
    start: Start
    filled: bool = False
    memory: int = -1


class Peers(msgspec.Struct, frozen=True, tag="peers"):
    """Addresses of the couriers and live workers, by host; ``source`` has the initial values."""

    peers: dict[int, tuple[str, int, str]]
    workers: dict[int, int] = {}
    source: int = 0


class Made(msgspec.Struct, frozen=True, tag="made"):
    """A worker has made the center of this host."""


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """All workers have released the center: a launcher ends its courier."""


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    host: int


class Gather(msgspec.Struct, frozen=True, tag="gather"):
    """Exchange the contributions of a round that ``workers`` of these ``hosts`` have reached."""

    number: int
    hosts: list[int]
    workers: list[int]


class Combine(msgspec.Struct, frozen=True, tag="combine"):
    """Add up the contributions of these hosts to a round, which all hosts of the round have.

    Their centers are at round ``base``. A host with an older center first requests another; that of
    host ``source`` is not older. After the step the source sends its center to ``idle`` hosts,
    which have no workers in this round.
    """

    number: int
    hosts: list[int]
    base: int
    source: int
    idle: list[int]


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    address: str
    port: int
    token: str


class Filled(msgspec.Struct, frozen=True, tag="filled"):
    """The center of the host holds the initial values of all hosts."""


class Gathered(msgspec.Struct, frozen=True, tag="gathered"):
    """A host has all contributions of a round; ``bases`` are the rounds of their centers."""

    number: int
    bases: dict[int, int]


class LeftOut(msgspec.Struct, frozen=True, tag="left-out"):
    """A host takes no part in exchanges, or does again (``why`` is empty)."""

    host: int
    why: str
    never: bool = False


ToCourier = Union[Begin, Peers, Made, Lost, Gather, Combine]
Order = Union[Start, Peers, Made, Dropped, Lost, Gather, Combine]  # From host 0 to the launcher of a courier.
News = Union[Listening, Filled, Gathered, LeftOut]
_order_decoder: msgspec.json.Decoder[ToCourier] = msgspec.json.Decoder(ToCourier)
_new_decoder: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)


def encode(message: ToCourier | News) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode_order(line: bytes) -> ToCourier:
    """Return the launcher's message in a line; raises `msgspec.MsgspecError`."""
    return _order_decoder.decode(line)


def decode_news(line: bytes) -> News:
    """Return the courier's message in a line; raises `msgspec.MsgspecError`."""
    return _new_decoder.decode(line)
