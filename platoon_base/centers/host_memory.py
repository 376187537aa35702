"""Shared memory of a center on the host: a header, a record for each stripe, then the buffers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.host_rounds import WORDS, rounds_bytes
from platoon_base.centers.host_shift import wide
from platoon_base.layout import Layout
from platoon_base.shm.segments import Segment
from platoon_base.views import array_on

__all__ = [
    "COURIER",
    "FIRST_HOLDER",
    "FREE",
    "HOLDER_NAMES",
    "Shape",
    "byte_of",
    "free_holders",
    "header_on",
    "holders_on",
    "lock_bytes",
    "no_header",
]

Array = np.ndarray[Any, Any]

_MAGIC = b"PLTNCNTR"
_VERSION = 13
FREE, CONTROLLER, COURIER = -1, -2, -3  # Holders that are not ranks.
HOLDER_NAMES = {CONTROLLER: "the controller", COURIER: "the courier"}

_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "u4"),
        ("stripes", "u4"),
        ("stripe_bytes", "u8"),
        ("fingerprint", "V32"),
        ("states", "u4"),
        ("rounds", "u4"),
        ("several_hosts", "u4"),
        ("average", "i4"),
        ("written", "u8"),
        ("spread", "u8"),
        ("stamp", "u8"),
        ("mean", "u8"),
    ]
)
FIRST_HOLDER = -(-_HEADER.itemsize // 64) * 64
# Holder and number of visits: a stripe that stays locked without a new visit is stuck.
_HOLDER = np.dtype([("rank", "i4"), ("visits", "u4"), ("shifts", "u4"), *WORDS], align=True)


class Shape(NamedTuple):
    """Describes the memory of a center besides its values."""

    stripe_bytes: int
    states: int  # Number of the rule's center states.
    rounds: bool  # Whether the memory of rounds follows, see `host_rounds`.
    several_hosts: bool  # Without rounds, the sum of other hosts' moves follows, see `host_shift`.
    average: int  # Index of the state that averages the center, or -1.

    @property
    def shift(self) -> bool:
        """Whether the memory holds the sum of other hosts' moves."""
        return self.several_hosts and not self.rounds

    def buffers_start(self, layout: Layout) -> int:
        """Return the offset of the center's values; the states follow, then rounds or moves."""
        holders = _HOLDER.itemsize * len(layout.stripes(self.stripe_bytes))
        return -(-(FIRST_HOLDER + holders) // 4096) * 4096

    def size_bytes(self, layout: Layout) -> int:
        size_bytes = self.buffers_start(layout) + layout.nbytes * (1 + self.states)
        size_bytes += wide(layout).nbytes if self.shift else 0
        return size_bytes + (rounds_bytes(layout, self.stripe_bytes, self.states) if self.rounds else 0)

    def write_header(self, segment: Segment, layout: Layout) -> None:
        header: Any = array_on(segment.buffer, (), _HEADER)
        stripes = len(layout.stripes(self.stripe_bytes))
        holders_on(segment, stripes)["rank"] = FREE
        header["version"], header["stripes"], header["fingerprint"] = _VERSION, stripes, np.void(layout.fingerprint)
        for name, value in self._asdict().items():
            header[name] = value
        header["magic"] = _MAGIC

    @classmethod
    def of(cls, segment: Segment, layout: Layout) -> Shape | None:
        """Read the header; None if the memory was made for another model or version."""
        if len(segment.buffer) < _HEADER.itemsize:
            return None
        header: Any = array_on(segment.buffer, (), _HEADER)
        found = (header["magic"].item(), header["version"].item(), header["fingerprint"].tobytes())
        if found != (_MAGIC, _VERSION, layout.fingerprint) or not header["stripe_bytes"]:
            return None
        shape = cls(
            header["stripe_bytes"].item(),
            header["states"].item(),
            bool(header["rounds"]),
            bool(header["several_hosts"]),
            header["average"].item(),
        )
        return shape if len(segment.buffer) == shape.size_bytes(layout) else None


def byte_of(stripe: int, first: int = FIRST_HOLDER) -> int:
    """Return the byte of a stripe's lock; the next one serves if a dead holder's child locks it."""
    return first + _HOLDER.itemsize * stripe


def lock_bytes(stripes: int, first: int = FIRST_HOLDER) -> tuple[int, int]:
    """Return the offset and the number of the bytes of all locks."""
    return first, _HOLDER.itemsize * stripes


def header_on(segment: Segment) -> Any:
    return array_on(segment.buffer, (), _HEADER)


def holders_on(segment: Segment, stripes: int, first: int = FIRST_HOLDER) -> Array:
    holders: Array = array_on(segment.buffer, (stripes,), _HOLDER, first)
    return holders


def no_header() -> Any:
    return np.zeros((), _HEADER)


def free_holders() -> Array:
    return np.empty(0, dtype=_HOLDER)
