"""Directory of a center on devices: its tiles, owners of the partitions, and a mirror of the center.

One segment of shared memory holds a header, a flag for each worker, an entry for each partition,
and a copy of the buffers of all partitions, which is a few seconds old.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.device_arrays import Order
from platoon_base.devices.cuda import HANDLE_BYTES
from platoon_base.dtypes import Array
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.layout import Layout
from platoon_base.parameters import assign
from platoon_base.shm.schema import PAGE, Part, Schema, Views, Word
from platoon_base.shm.segments import Name
from platoon_base.system.environment import MAX_WORKERS
from platoon_base.timeouts import SHORT_POLL_S

# Measured on NVLink: large relative to the cost of a lock, small enough to use all blocks.
TILE_BYTES = 1 << 16
ALIGNMENT = 256  # Bytes.
_ELEMENT_BITS = 40
# These bits of a word number an element, the bits above a parameter.
ELEMENT = (1 << _ELEMENT_BITS) - 1
LOCK_BYTES = 32  # Distance of the tiles' locks: a sector of the device's cache.


class Tile(NamedTuple):
    """Elements ``start`` to ``start + size`` of a flattened parameter, and their place."""

    parameter: int
    start: int
    size: int
    partition: int
    # Bytes from the start of the partition. The tile of each center state follows buffer_bytes
    # after the previous one.
    lock: int
    offset: int
    state: int  # Bytes from the start of a worker's state buffer, which holds all tiles.


class Tiling:
    """Tiles of a layout, assigned to the partitions in turn to use all links at the same time."""

    def __init__(self, layout: Layout, partitions: int, center_states: int = 0) -> None:
        # A partition holds its locks, then its values, then each center state. ``values_start`` is
        # the offset of the values in each partition, ``buffer_bytes`` the size of its values and of
        # each state.
        self.center_states = center_states
        pieces = [
            (index, start, min(spec.size - start, step), np.dtype(spec.dtype).itemsize)
            for index, spec in enumerate(layout.specs)
            for step in (TILE_BYTES // np.dtype(spec.dtype).itemsize,)
            for start in range(0, spec.size, step)
        ]
        counts = [len(range(partition, len(pieces), partitions)) for partition in range(partitions)]
        self.values_start = [_aligned(LOCK_BYTES * count) for count in counts]
        ends, state = list(self.values_start), 0
        self.tiles: list[Tile] = []
        for number, (parameter, start, size, itemsize) in enumerate(pieces):
            partition = number % partitions
            lock = LOCK_BYTES * (number // partitions)
            self.tiles.append(Tile(parameter, start, size, partition, lock, ends[partition], state))
            ends[partition] += _aligned(size * itemsize)
            state += _aligned(size * itemsize)
        self.buffer_bytes = [end - start for end, start in zip(ends, self.values_start)]
        self.partition_bytes = [
            max(start + size * (1 + center_states), ALIGNMENT)
            for start, size in zip(self.values_start, self.buffer_bytes)
        ]
        self.state_bytes = max(state, ALIGNMENT)


def tile_table(
    tiling: Tiling, parameters: Sequence[int], partition_at: Mapping[int, int], states_at: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the kernel's table of the tiles of ``parameters``: one row of words per tile."""
    # The words of a row: the tile's first element, with the parameter's number in the layout above
    # ELEMENT; the parameter's index in ``parameters``, with the tile's size in the upper half; the
    # addresses of the tile's lock, its values, each center state and each local state.
    index = {parameter: i for i, parameter in enumerate(parameters)}
    rows = []
    for t in tiling.tiles:
        if t.parameter in index:
            start, step = partition_at[t.partition], tiling.buffer_bytes[t.partition]
            head = [t.parameter << _ELEMENT_BITS | t.start, index[t.parameter] | t.size << 32, start + t.lock]
            shared = [start + t.offset + step * i for i in range(1 + tiling.center_states)]
            rows.append([*head, *shared, *(state + t.state for state in states_at)])
    columns = 4 + tiling.center_states + len(states_at)
    return np.array(rows, dtype=np.uint64).reshape(len(rows), columns)


def split_element_code(word: int) -> tuple[int, int]:
    """Return the parameter's number and the element from the word that a kernel reports."""
    return word >> _ELEMENT_BITS, word & ELEMENT


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


NO_OWNER = -1
FINAL = 1 << 62  # Mirror number of an owner that has left.
# ``writes`` is odd while an entry is written, and stays odd if its writer dies meanwhile.
_ENTRY = np.dtype(
    [("writes", "i8"), ("owner", "i8"), ("incarnation", "i8"), ("handle", f"V{HANDLE_BYTES}"), ("mirrored", "i8")]
)
# Parameters with more dimensions are stored in C order.
MAX_DIMENSIONS = 8
# Workers copy their partitions when they synchronize, after the work queued on their devices.
_SETTLE_S, _MIRROR_S = 0.5, 10.0


@functools.lru_cache(maxsize=1)
def _tiling(layout: Layout, partitions: int, center_states: int) -> Tiling:
    return Tiling(layout, partitions, center_states)


def _parts(header: Any, layout: Layout) -> Iterator[Part]:
    tiling = _tiling(layout, int(header["partitions"]), int(header["center_states"]))
    yield Part("flags", "u4", (MAX_WORKERS,))  # A device sets its worker's when it refuses an element.
    yield Part("entries", _ENTRY, (len(tiling.partition_bytes),))
    yield Part("orders", "u1", (len(layout), MAX_DIMENSIONS))
    yield Part("model", layout, (0,), PAGE)  # Of all values there is no copy, only the mirrors.
    for number, (size, start) in enumerate(zip(tiling.partition_bytes, tiling.values_start)):
        yield Part(f"mirror {number}", "u1", (size - start,))
    yield Part("end", "u1", (0,), PAGE)  # Whole pages are pinned.


DIRECTORY = Schema(
    "a center on devices",
    b"PLTNPART",
    7,
    [("partitions", "u4"), ("center_states", "u4"), ("changes", "i8"), ("wanted", "i8")],
    _parts,
)


class Entry(NamedTuple):
    """Owner of a partition, which is valid for one incarnation of the owner's process."""

    generation: int  # 0 until the partition is made; it grows with every new owner.
    owner: int  # NO_OWNER while the entry is being written, or if its writer died.
    handle: bytes  # CUDA IPC handle
    incarnation: int = 0


class DeviceDirectory:
    """Directory in an open segment."""

    version = Word("changes")  # Changes with every entry.
    wanted = Word("wanted")  # Number of the latest mirror requested.

    def __init__(self, memory: Views, layout: Layout) -> None:
        self._segment, self._at, self._layout = memory.segment, memory.at, layout
        self.workers = len(memory.entries)
        self.tiling = _tiling(layout, self.workers, int(memory.header["center_states"]))
        self.size_bytes = len(memory.segment.buffer)
        self.address = int(memory.header.ctypes.data)
        self._memory, self._header = memory, memory.header

    @classmethod
    def create(
        cls, name: Name, layout: Layout, partitions: int, center_states: int, orders: Sequence[Order]
    ) -> DeviceDirectory:
        """Create the segment, with the order in memory of each parameter."""
        memory = DIRECTORY.create(name, layout, partitions=partitions, center_states=center_states)
        for row, order in zip(memory.orders, orders):
            row[:] = (*order, *range(len(order), MAX_DIMENSIONS))[:MAX_DIMENSIONS]
        return cls(memory, layout)

    @classmethod
    def attach(cls, name: Name, layout: Layout, populate: bool = True, **expected: Any) -> DeviceDirectory:
        return cls(DIRECTORY.attach(name, layout, populate, **expected), layout)

    @functools.cached_property
    def orders(self) -> list[Order]:
        """The order in memory of each parameter: that of its elements in the partitions and in the mirror."""
        shapes = [spec.shape for spec in self._layout.specs]
        return [
            tuple(row[: len(shape)].tolist()) if len(shape) <= MAX_DIMENSIONS else tuple(range(len(shape)))
            for row, shape in zip(self._memory.orders, shapes)
        ]

    @property
    def complete(self) -> bool:
        return bool((self._memory.entries["writes"] > 1).all())

    def entry(self, partition: int) -> Entry:
        """Read the entry of a partition consistently."""
        entry = self._memory.entries[partition]
        writes = int(entry["writes"])
        found = entry.copy()
        if writes % 2 or entry["writes"] != writes:
            return Entry(writes // 2, NO_OWNER, bytes(HANDLE_BYTES))
        return Entry(writes // 2, int(found["owner"]), found["handle"].tobytes(), int(found["incarnation"]))

    def publish(self, partition: int, owner: int, handle: bytes, incarnation: int = 0) -> None:
        """Write a new owner, whose partition is not mirrored yet; the caller holds the lock."""
        entry = self._memory.entries[partition]
        entry["writes"] |= 1  # Already odd if the last writer died while writing.
        entry["handle"], entry["owner"], entry["incarnation"], entry["mirrored"] = (
            np.void(handle),
            owner,
            incarnation,
            0,
        )
        entry["writes"] += 1
        self.version += 1

    def try_lock(self, partition: int) -> bool:
        return self._segment.try_lock(self._at["entries"] + _ENTRY.itemsize * partition)

    def unlock(self, partition: int) -> None:
        self._segment.unlock(self._at["entries"] + _ENTRY.itemsize * partition)

    def flag_offset(self, rank: int) -> int:
        return self._at["flags"] + 4 * rank

    def flag(self, rank: int) -> bool:
        return bool(self._memory.flags[rank])

    def clear_flag(self, rank: int) -> None:
        self._memory.flags[rank] = 0

    # Mirror: a process requests one by writing a number; each owner writes it after its copy.

    def want_mirror(self) -> int:
        """Request a new mirror of all partitions; return its number."""
        self.wanted += 1
        return self.wanted

    def mirrored(self, partition: int, number: int = FINAL) -> None:
        """Record that a partition's mirror satisfies a request; `FINAL` is its owner's last one."""
        self._memory.entries[partition]["mirrored"] = number

    def has_mirror(self, number: int) -> bool:
        """Return whether all partitions made so far have a mirror for the request."""
        return bool(((self._memory.entries["mirrored"] >= number) | (self._memory.entries["writes"] < 2)).all())

    def mirror_of(self, partition: int) -> tuple[int, int]:
        """Return offset in the segment and size in bytes of the mirror of a partition."""
        return self._at[f"mirror {partition}"], self.mirror(partition).size

    def mirror(self, partition: int) -> Array:
        found: Array = getattr(self._memory, f"mirror {partition}")
        return found

    # Buffer 0 has the center's values, buffer 1 its first state, and so on.

    def read_buffer(self, buffer: int, out: Sequence[Any]) -> None:
        """Copy a buffer of the mirror into arrays of any kind, one for each parameter."""
        specs = self._layout.specs
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

    def buffer_as_state(self, buffer: int) -> Array:
        """Return a copy of a buffer of the mirror, as the bytes of a worker's own state."""
        state = np.zeros(self.tiling.state_bytes, np.uint8)
        for tile, mirrored in self._mirrored_tiles(buffer):
            state[tile.state : tile.state + mirrored.size] = mirrored
        return state

    def _mirrored_tiles(self, buffer: int) -> Iterator[tuple[Tile, Any]]:
        for t in self.tiling.tiles:
            start = self.tiling.buffer_bytes[t.partition] * buffer + t.offset - self.tiling.values_start[t.partition]
            nbytes = t.size * np.dtype(self._layout.specs[t.parameter].dtype).itemsize
            yield t, self.mirror(t.partition)[start : start + nbytes]

    @property
    def closed(self) -> bool:
        return self._segment.closed

    def close(self) -> None:
        del self._memory, self._header
        self._segment.close()


class DirectoryMirror:
    """The controller's handle of a center on devices, see `Readable`; owns the directory."""

    def __init__(self, directory: DeviceDirectory, layout: Layout) -> None:
        self._directory = directory
        self._layout = layout

    def snapshot(self, may_wait: bool) -> tuple[list[Array], list[list[Array]]]:
        """Copy a new mirror, or the last one if all owners have left; workers continue."""
        if not self._directory.has_mirror(FINAL):
            self._await_mirror(may_wait)
        values, *states = (self._layout.empty() for _ in range(1 + self._directory.tiling.center_states))
        for buffer, arrays in enumerate([values, *states]):
            self._directory.read_buffer(buffer, arrays)
        return values, states

    def _await_mirror(self, may_wait: bool) -> None:
        if not may_wait:
            raise CollectiveTimeoutError(
                "for a center on devices, only workers that are not waiting copy it to the host"
            )
        time.sleep(_SETTLE_S)
        number, deadline = self._directory.want_mirror(), time.monotonic() + _MIRROR_S
        while not self._directory.has_mirror(number):
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(f"no worker on a device has synchronized for {_MIRROR_S:g} s")
            time.sleep(SHORT_POLL_S)

    def close(self) -> None:
        if not self._directory.closed:
            self._directory.close()
