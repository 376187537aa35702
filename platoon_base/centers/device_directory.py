"""Directory of a center on devices: owners of the partitions, and a mirror of the center.

One segment of shared memory holds a header, a flag for each worker, an entry for each partition,
and a copy of the buffers of all partitions, which is a few seconds old.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.centers.device_tiles import Tile, Tiling
from platoon_base.device_arrays import Order
from platoon_base.devices.cuda import HANDLE_BYTES
from platoon_base.layout import Layout
from platoon_base.parameters import assign
from platoon_base.shm.segments import Segment
from platoon_base.system.environment import MAX_WORKERS
from platoon_base.views import array_on

__all__ = ["NO_OWNER", "DeviceDirectory", "DirectoryLayout", "Entry"]

MAGIC = b"PLTNPART"
VERSION = 6
NO_OWNER = -1
FINAL = 1 << 62  # Mirror number of an owner that has left.
_PAGE = 4096

_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "u4"),
        ("partitions", "u4"),
        ("center_states", "i8"),
        ("changes", "i8"),
        ("wanted", "i8"),
        ("fingerprint", "V32"),
    ],
    align=True,
)
_FLAGS = 128
_FLAG_BYTES = 4
_ENTRIES = _FLAGS + _FLAG_BYTES * MAX_WORKERS
# ``writes`` is odd while an entry is written, and stays odd if its writer dies meanwhile.
_ENTRY = np.dtype(
    [("writes", "i8"), ("owner", "i8"), ("incarnation", "i8"), ("handle", f"V{HANDLE_BYTES}"), ("mirrored", "i8")]
)


# Parameters with more dimensions are stored in C order.
MAX_DIMENSIONS = 8


class Entry(NamedTuple):
    """Owner of a partition, which is valid for one incarnation of the owner's process."""

    generation: int  # 0 until the partition is made; it grows with every new owner.
    owner: int  # NO_OWNER while the entry is being written, or if its writer died.
    handle: bytes  # CUDA IPC handle
    incarnation: int = 0


class DirectoryLayout:
    """Offsets in the segment."""

    def __init__(self, layout: Layout, tiling: Tiling) -> None:
        self.layout = layout
        self.tiling = tiling
        self.partitions = len(tiling.partition_bytes)
        self.orders = _ENTRIES + _ENTRY.itemsize * self.partitions
        position = -(-(self.orders + MAX_DIMENSIONS * len(layout)) // _PAGE) * _PAGE
        self.mirrors: list[tuple[int, int]] = []
        for size, start in zip(tiling.partition_bytes, tiling.values_start):
            self.mirrors.append((position, size - start))
            position += size - start
        self.size_bytes = -(-position // _PAGE) * _PAGE

    def fits(self, segment: Segment) -> bool:
        header: Any = array_on(segment.buffer, (), _HEADER)
        return bool(
            len(segment.buffer) == self.size_bytes
            and header["version"] == VERSION
            and header["center_states"] == self.tiling.center_states
            and header["fingerprint"].tobytes() == self.layout.fingerprint
        )


class DeviceDirectory:
    """Directory in an open segment."""

    def __init__(self, segment: Segment, plan: DirectoryLayout) -> None:
        self._segment = segment
        self._plan = plan
        self.tiling = plan.tiling
        self.workers = plan.partitions
        self.size_bytes = plan.size_bytes
        self._bytes: Any = array_on(segment.buffer, (len(segment.buffer),), np.uint8)
        self.address = int(self._bytes.ctypes.data)
        self._header: Any = array_on(segment.buffer, (), _HEADER)
        self._flags: Any = array_on(segment.buffer, (MAX_WORKERS,), "u4", _FLAGS)
        self._entries: Any = array_on(segment.buffer, (plan.partitions,), _ENTRY, _ENTRIES)
        self._orders: Any = array_on(segment.buffer, (len(plan.layout), MAX_DIMENSIONS), "u1", plan.orders)

    @staticmethod
    def partitions_in(segment: Segment) -> int:
        """Return the number of partitions of a directory; 0 if the segment holds none."""
        if len(segment.buffer) < _PAGE:
            return 0
        header: Any = array_on(segment.buffer, (), _HEADER)
        return int(header["partitions"]) if header["magic"].item() == MAGIC else 0

    @classmethod
    def of(cls, segment: Segment, layout: Layout) -> DeviceDirectory | None:
        """Open the directory in a segment; None if there is none for this layout."""
        partitions = cls.partitions_in(segment)
        if not partitions:
            return None
        header: Any = array_on(segment.buffer, (), _HEADER)
        plan = DirectoryLayout(layout, Tiling(layout, partitions, int(header["center_states"])))
        return cls(segment, plan) if plan.fits(segment) else None

    def begin(self, orders: Sequence[Order]) -> None:
        """Write the header of a new directory, and the order in memory of each parameter."""
        for row, order in zip(self._orders, orders):
            row[:] = (*order, *range(len(order), MAX_DIMENSIONS))[:MAX_DIMENSIONS]
        self._header["version"], self._header["partitions"] = VERSION, self._plan.partitions
        self._header["center_states"] = self.tiling.center_states
        self._header["fingerprint"] = np.void(self._plan.layout.fingerprint)
        self._header["magic"] = MAGIC

    @functools.cached_property
    def orders(self) -> list[Order]:
        """The order in memory of each parameter: that of its elements in the partitions and in the mirror."""
        shapes = [spec.shape for spec in self._plan.layout.specs]
        return [
            tuple(row[: len(shape)].tolist()) if len(shape) <= MAX_DIMENSIONS else tuple(range(len(shape)))
            for row, shape in zip(self._orders, shapes)
        ]

    @property
    def version(self) -> int:
        """Number that changes with every entry."""
        return int(self._header["changes"])

    @property
    def complete(self) -> bool:
        return bool((self._entries["writes"] > 1).all())

    def entry(self, partition: int) -> Entry:
        """Read the entry of a partition consistently."""
        entry = self._entries[partition]
        writes = int(entry["writes"])
        found = entry.copy()
        if writes % 2 or entry["writes"] != writes:
            return Entry(writes // 2, NO_OWNER, bytes(HANDLE_BYTES))
        return Entry(writes // 2, int(found["owner"]), found["handle"].tobytes(), int(found["incarnation"]))

    def publish(self, partition: int, owner: int, handle: bytes, incarnation: int = 0) -> None:
        """Write a new owner, whose partition is not mirrored yet; the caller holds the lock."""
        entry = self._entries[partition]
        entry["writes"] |= 1  # Already odd if the last writer died while writing.
        entry["handle"], entry["owner"], entry["incarnation"], entry["mirrored"] = (
            np.void(handle),
            owner,
            incarnation,
            0,
        )
        entry["writes"] += 1
        self._header["changes"] += 1

    def try_lock(self, partition: int) -> bool:
        return self._segment.try_lock(_ENTRIES + _ENTRY.itemsize * partition)

    def unlock(self, partition: int) -> None:
        self._segment.unlock(_ENTRIES + _ENTRY.itemsize * partition)

    # A device sets its worker's flag when it refuses an element.

    def flag_offset(self, rank: int) -> int:
        return _FLAGS + _FLAG_BYTES * rank

    def flag(self, rank: int) -> bool:
        return bool(self._flags[rank])

    def clear_flag(self, rank: int) -> None:
        self._flags[rank] = 0

    # Mirror: a process requests one by writing a number; each owner writes it after its copy.

    @property
    def wanted(self) -> int:
        """Number of the latest mirror requested."""
        return int(self._header["wanted"])

    def want_mirror(self) -> int:
        """Request a new mirror of all partitions; return its number."""
        self._header["wanted"] += 1
        return self.wanted

    def mirrored(self, partition: int, number: int = FINAL) -> None:
        """Record that a partition's mirror satisfies a request; `FINAL` is its owner's last one."""
        self._entries[partition]["mirrored"] = number

    def has_mirror(self, number: int) -> bool:
        """Return whether all partitions made so far have a mirror for the request."""
        return bool(((self._entries["mirrored"] >= number) | (self._entries["writes"] < 2)).all())

    def mirror_of(self, partition: int) -> tuple[int, int]:
        """Return offset in the segment and size in bytes of the mirror of a partition."""
        return self._plan.mirrors[partition]

    def mirror(self, partition: int) -> np.ndarray[Any, Any]:
        start, size = self._plan.mirrors[partition]
        found: np.ndarray[Any, Any] = self._bytes[start : start + size]
        return found

    # Buffer 0 has the center's values, buffer 1 its first state, and so on.

    def read_buffer(self, buffer: int, out: Sequence[Any]) -> None:
        """Copy a buffer of the mirror into arrays of any kind, one for each parameter."""
        specs = self._plan.layout.specs
        values = [np.empty([spec.shape[axis] for axis in order], spec.dtype) for spec, order in zip(specs, self.orders)]
        for tile, mirrored in self._mirrored_tiles(buffer):
            flat = values[tile.parameter].reshape(-1)
            flat[tile.start : tile.start + tile.size] = mirrored.view(flat.dtype)
        for array, value, order in zip(out, values, self.orders):
            assign(array, value.transpose(np.argsort(order)))

    def write_buffer(self, buffer: int, values: Sequence[Any]) -> None:
        """Copy arrays of any kind, one for each parameter, into a buffer of the mirror."""
        flat = [np.asarray(value).transpose(order).reshape(-1) for value, order in zip(values, self.orders)]
        for tile, mirrored in self._mirrored_tiles(buffer):
            mirrored[:] = flat[tile.parameter][tile.start : tile.start + tile.size].view(np.uint8)

    def buffer_as_state(self, buffer: int) -> np.ndarray[Any, Any]:
        """Return a copy of a buffer of the mirror, as the bytes of a worker's own state."""
        state = np.zeros(self.tiling.state_bytes, np.uint8)
        for tile, mirrored in self._mirrored_tiles(buffer):
            state[tile.state : tile.state + mirrored.size] = mirrored
        return state

    def _mirrored_tiles(self, buffer: int) -> Iterator[tuple[Tile, Any]]:
        for t in self.tiling.tiles:
            start = self._plan.mirrors[t.partition][0] + self.tiling.buffer_bytes[t.partition] * buffer
            start += t.offset - self.tiling.values_start[t.partition]
            nbytes = t.size * np.dtype(self._plan.layout.specs[t.parameter].dtype).itemsize
            yield t, self._bytes[start : start + nbytes]

    @property
    def closed(self) -> bool:
        return self._segment.closed

    def close(self) -> None:
        del self._header, self._flags, self._entries, self._bytes, self._orders
        self._segment.close()
