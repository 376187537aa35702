"""Tiles of a center on devices: pieces of the parameters, assigned to the partitions in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.layout import Layout

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
