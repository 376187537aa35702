"""Rounds in fragments: each round takes one contiguous part of the center, in turn.

The round's number determines the fragment: all workers and hosts agree without a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.layout import ALIGNMENT, Layout, ParameterSpec, Piece

__all__ = ["Fragment", "Fragments", "stripe_bytes_for"]


class Fragment(NamedTuple):
    """Part of the center that a round takes; ``layout`` describes its ``pieces``."""

    stripes: range
    pieces: tuple[Piece, ...]
    layout: Layout
    within: tuple[tuple[Piece, ...], ...]  # For each stripe, its pieces of arrays of ``layout``.

    def of_stripe(self, index: int) -> tuple[Piece, ...]:
        return self.within[index - self.stripes.start]


class Fragments:
    """Fragments of a center; a single one is the whole center."""

    def __init__(self, layout: Layout, stripes: Sequence[tuple[Piece, ...]], count: int = 1) -> None:
        self.stripes = stripes
        if count == 1:
            whole = tuple(Piece(i, 0, spec.size) for i, spec in enumerate(layout.specs))
            self._all = [Fragment(range(len(stripes)), whole, layout, tuple(stripes))]
        else:
            self._all = [_fragment(layout, stripes, each) for each in _groups(layout, stripes, count)]
        self.largest_bytes = max(each.layout.nbytes for each in self._all)

    def of_round(self, number: int) -> Fragment:
        """Return the fragment of a round; rounds are counted from 1."""
        return self._all[self.index_of(number)]

    def index_of(self, number: int) -> int:
        return (number - 1) % len(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Fragment]:
        return iter(self._all)


def stripe_bytes_for(layout: Layout, count: int, wanted: int) -> int:
    """Return the stripe size, at most ``wanted``, with equally many stripes in each fragment."""
    if count == 1:
        return wanted
    each = sum(spec.nbytes for spec in layout.specs) // count
    stripes = -(-each // wanted)
    return max(ALIGNMENT, -(-each // max(stripes, 1)))


def _groups(layout: Layout, stripes: Sequence[tuple[Piece, ...]], count: int) -> list[range]:
    """Group the stripes by about equal bytes; the middle of a stripe determines its group."""
    sizes = [
        sum((p.stop - p.start) * np.dtype(layout.specs[p.parameter].dtype).itemsize for p in pieces)
        for pieces in stripes
    ]
    total, before = sum(sizes), 0
    members: list[list[int]] = [[] for _ in range(count)]
    for index, size in enumerate(sizes):
        members[(2 * before + size) * count // (2 * total)].append(index)
        before += size
    if not all(members):
        raise ConfigurationError(
            f"got fragments={count}, and parameters of {total} bytes in all, which cannot be cut into so many parts: "
            "rounds in fragments are for large models; leave fragments out"
        )
    return [range(each[0], each[-1] + 1) for each in members]


def _fragment(layout: Layout, stripes: Sequence[tuple[Piece, ...]], group: range) -> Fragment:
    merged: list[Piece] = []
    within: list[tuple[Piece, ...]] = []
    for index in group:
        own = []
        for piece in stripes[index]:
            if merged and merged[-1].parameter == piece.parameter:
                merged[-1] = merged[-1]._replace(stop=piece.stop)
            else:
                merged.append(piece)
            start = merged[-1].start
            own.append(Piece(len(merged) - 1, piece.start - start, piece.stop - start))
        within.append(tuple(own))
    specs = tuple(
        ParameterSpec(layout.specs[p.parameter].name, (p.stop - p.start,), layout.specs[p.parameter].dtype)
        for p in merged
    )
    return Fragment(group, tuple(merged), Layout(specs), tuple(within))
