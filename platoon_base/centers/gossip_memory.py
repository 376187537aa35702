"""Shared memory of workers that gossip: a header, and a slot per worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.host_kernels import Plan
from platoon_base.centers.host_memory import FREE, holders_on, lock_bytes
from platoon_base.centers.stripe_locks import StripeLocks
from platoon_base.centers.stripes import Stripe, copy_all, cut
from platoon_base.layout import Layout
from platoon_base.rules.easgd import EASGD
from platoon_base.shm.segments import Segment
from platoon_base.views import array_on

__all__ = ["TABLE_LOCK", "WHOLE", "GossipShape", "Slot", "count_slots", "shares_of", "slots_on"]

Array = np.ndarray[Any, Any]

WHOLE = 1 << 60  # Sum of all weights; as integers, halves add up exactly.
TABLE_LOCK = 0  # Byte of the lock of the table of owners.
_MAGIC = b"PLTNGSSP"
_VERSION = 3
_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "u4"),
        ("slots", "u4"),
        ("stripe_bytes", "u8"),
        ("fingerprint", "V32"),
    ]
)
_PAGE = 4096
_FIRST_HOLDER = 64  # Offset in a slot, after its owner.


def shares_of(workers: int) -> list[int]:
    """Return equal weights for the first workers of a job, which add up to `WHOLE`."""
    share, rest = divmod(WHOLE, workers)
    return [share + (i < rest) for i in range(workers)]


class GossipShape(NamedTuple):
    """Describes the memory besides its values."""

    stripe_bytes: int
    layout: Layout

    @property
    def stripes(self) -> int:
        return len(self.layout.stripes(self.stripe_bytes))

    @property
    def weights_start(self) -> int:
        """Offset in a slot of the weights, one for each stripe; the received weights follow."""
        _, holders = lock_bytes(self.stripes)
        return _FIRST_HOLDER + -(-holders // 64) * 64

    @property
    def values_start(self) -> int:
        """Offset in a slot of the values; the owner's published values follow."""
        return -(-(self.weights_start + 16 * self.stripes) // _PAGE) * _PAGE

    @property
    def slot_bytes(self) -> int:
        return self.values_start + -(-2 * self.layout.nbytes // _PAGE) * _PAGE

    def size_bytes(self, slots: int) -> int:
        return _PAGE + slots * self.slot_bytes

    def start_of(self, slot: int) -> int:
        """Return the offset of a slot, which is also the byte of its owner's lock."""
        return self.size_bytes(slot)

    def write_header(self, segment: Segment, slots: int) -> None:
        """Write the header and clear the slots."""
        header = _header_on(segment)
        header["version"], header["stripe_bytes"] = _VERSION, self.stripe_bytes
        header["fingerprint"] = np.void(self.layout.fingerprint)
        for slot in range(slots):
            self.clear(segment, slot)
        header["slots"] = slots
        header["magic"] = _MAGIC

    def clear(self, segment: Segment, slot: int) -> None:
        """Mark a slot and its stripes as free."""
        start = self.start_of(slot)
        _owner_on(segment, start)[...] = FREE
        holders_on(segment, self.stripes, start + _FIRST_HOLDER)["rank"] = FREE

    @classmethod
    def of(cls, segment: Segment, layout: Layout) -> GossipShape | None:
        """Read the header; None if the memory has another kind, model or version."""
        if len(segment.buffer) < _PAGE:
            return None
        header = _header_on(segment)
        found = (header["magic"].item(), header["version"].item(), header["fingerprint"].tobytes())
        if found != (_MAGIC, _VERSION, layout.fingerprint) or not header["stripe_bytes"]:
            return None
        shape = cls(header["stripe_bytes"].item(), layout)
        # Check one slot only: the memory may have grown since it was mapped.
        return shape if len(segment.buffer) >= shape.size_bytes(1) else None


class Slot:
    """A worker's part of the memory: its published parameters, merged with those received since."""

    def __init__(
        self,
        segment: Segment,
        shape: GossipShape,
        index: int,
        rank: int,
        gone: Callable[[int], bool],
        own: bool = False,
    ) -> None:
        self.index = index
        self._segment = segment
        start, layout = shape.start_of(index), shape.layout
        self._owner_byte, self._owner = start, _owner_on(segment, start)
        pieces = layout.stripes(shape.stripe_bytes)
        holders = holders_on(segment, len(pieces), start + _FIRST_HOLDER)
        # Each stripe has a weight and gossips separately: a dead worker loses whole stripes.
        # ``received`` is the part of the weight received since the owner's last synchronization.
        self.weights: Array = array_on(segment.buffer, (len(pieces),), "u8", start + shape.weights_start)
        behind = start + shape.weights_start + self.weights.nbytes
        self.received: Array = array_on(segment.buffer, (len(pieces),), "u8", behind)
        # ``values`` is c of `GoSGD`, ``published`` its x_old, which is written only once something
        # is merged.
        self.values = layout.views(segment.buffer, start + shape.values_start)
        self.published = layout.views(segment.buffer, start + shape.values_start + layout.nbytes)
        own_states = [self.published] if own else []
        self.stripes = [
            Stripe(i, p, self.values, [], own_states, holders[i], len(layout), len(layout))
            for i, p in enumerate(pieces)
        ]
        self.locks = StripeLocks(segment, self.stripes, rank, gone, start + _FIRST_HOLDER)

    @property
    def owner(self) -> int:
        """Rank of the worker that owns the slot; negative if there is none."""
        return int(self._owner)

    @owner.setter
    def owner(self, rank: int) -> None:
        self._owner[...] = rank

    def mix(self, stripe: Stripe, pieces: Sequence[Array], weight: int, received: bool = True) -> None:
        """Merge values into a stripe; `add` must follow and adds their weight."""
        index = stripe.index
        if received and not self.received[index]:
            copy_all(cut(self.published, stripe.pieces), stripe.center)
        # c := c + ratio (x - c); the change of x is discarded.
        ratio = weight / (int(self.weights[index]) + weight)
        Plan(stripe.center).run(EASGD(ratio), [piece.copy() for piece in pieces])

    def add(self, index: int, weight: int, received: bool = True) -> None:
        """Add to the weight of a stripe, and to its received part."""
        self.weights[index] += np.uint64(weight)
        if received:
            self.received[index] += np.uint64(weight)

    def is_overwritten(self, index: int) -> bool:
        """Return whether a stripe was overwritten since the owner's last synchronization."""
        return bool(self.received[index] and self.received[index] == self.weights[index])

    def claim(self) -> bool:
        """Acquire the lock that shows that the owner lives; False if another process holds it."""
        return self._segment.try_lock(self._owner_byte)

    def unclaim(self) -> None:
        self._segment.unlock(self._owner_byte)

    @property
    def claimed(self) -> bool:
        """Whether another handle holds the owner's lock."""
        return self._segment.locked(self._owner_byte)

    @property
    def weight(self) -> int:
        return sum(map(int, self.weights))


def slots_on(segment: Segment) -> int:
    return int(_header_on(segment)["slots"])


def count_slots(segment: Segment, slots: int) -> None:
    _header_on(segment)["slots"] = slots


def _header_on(segment: Segment) -> Any:
    return array_on(segment.buffer, (), _HEADER)


def _owner_on(segment: Segment, start: int) -> Any:
    return array_on(segment.buffer, (), "i4", start)
