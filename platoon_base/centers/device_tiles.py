"""The tiles of a center on devices: pieces of the parameters, assigned to the partitions in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.layout import Layout

__all__ = [
    "ALIGNMENT", "ELEMENT", "LOCK_BYTES", "TILE_BYTES", "Tile", "Tiling", "split_element_code", "tile_table",
]  # fmt: skip

TILE_BYTES = 1 << 16  # measured on NVLink: large against the cost of a lock, small enough for all blocks of a device
ALIGNMENT = 256  # bytes
_ELEMENT_BITS = 40
ELEMENT = (1 << _ELEMENT_BITS) - 1  # the bits of a word that number an element; those above number a parameter
LOCK_BYTES = 32  # distance of the tiles' locks: a sector of the device's cache


class Tile(NamedTuple):
    """Elements ``start`` to ``start + size`` of a parameter, and their place in the center.

    Attributes
    ----------
    parameter, start, size : int
        ``start`` and ``size`` in elements of the flattened parameter.
    partition : int
    lock, offset : int
        Bytes from the start of the partition to the tile's lock and to its values. The tile of each center state
        follows `Tiling.buffer_bytes` after the previous one.
    state : int
        Bytes from the start of a state buffer of one worker, which holds all tiles.
    """

    parameter: int
    start: int
    size: int
    partition: int
    lock: int
    offset: int
    state: int


class Tiling:
    """The tiles of a layout, assigned to the partitions in turn, so that all links are used at once.

    Parameters
    ----------
    layout : Layout
    partitions : int
    center_states : int
        Number of the rule's center states.

    Attributes
    ----------
    tiles : list of Tile
    center_states : int
    partition_bytes : list of int
        Size of each partition: its locks, then its values, then each center state.
    values_start : list of int
        Offset of the values in each partition, in bytes.
    buffer_bytes : list of int
        Size of the values of each partition, and of each center state.
    state_bytes : int
        Size of a state buffer.
    """

    def __init__(self, layout: Layout, partitions: int, center_states: int = 0) -> None:
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
    """Make the kernel's table of the tiles of some parameters: one row of words per tile.

    The words of a row are: the tile's first element, with the parameter's number in the layout in the bits above
    `ELEMENT`; the parameter's index in ``parameters``, with the tile's size in the upper half; the address of the
    tile's lock; the addresses of its values in the center, in each center state, and in each local state.

    Parameters
    ----------
    tiling : Tiling
    parameters : sequence of int
        Numbers of the kernel's parameters, in order.
    partition_at : mapping of int to int
        The address of each partition.
    states_at : sequence of int
        The addresses of the worker's state buffers.
    """
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
    """Split the word with which a kernel reports an element: the parameter's number in the layout, and the element."""
    return word >> _ELEMENT_BITS, word & ELEMENT


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
