"""Sums over batches and workers: exact pairs of a weighted sum and its weight, and vectors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np

from platoon_base.errors import ConfigurationError

Pairs = dict[str, tuple[float, float]]
VECTOR_ITEM_BYTES = 8


def add_pairs(contributions: Iterable[Mapping[str, tuple[float, float]]]) -> Pairs:
    """Add ``{name: (sum, weight)}`` mappings, exactly rounded and independent of their order."""
    columns: dict[str, list[tuple[float, float]]] = {}
    for pairs in contributions:
        for name, pair in pairs.items():
            columns.setdefault(name, []).append(pair)
    return {name: (_sum(s for s, _ in column), _sum(w for _, w in column)) for name, column in columns.items()}


def _sum(values: Iterable[float]) -> float:
    values = list(values)
    special = [v for v in values if not math.isfinite(v)]
    if special:
        # The result is inf, -inf or NaN.
        return sum(special)
    try:
        return math.fsum(values)
    except OverflowError:
        # A partial sum is too large, but the total may still be representable.
        total = sum(map(Fraction, values), Fraction())
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def add_vectors(vectors: Iterable[bytes]) -> bytes:
    """Add vectors of equal length, given as little-endian float64, in the given order."""
    parts = [np.frombuffer(vector, dtype="<f8") for vector in vectors]
    if not parts[0].size:
        return b""
    total = parts[0].copy()
    # Infinities are kept, and their differences are NaN.
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            total += part
    return total.tobytes()


def means(pairs: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Divide each sum by its weight; a weight of 0 gives NaN."""
    return {name: total / weight if weight else math.nan for name, (total, weight) in pairs.items()}


class MeanAccumulator:
    """Collects per-batch means with their sample counts, as exact sums."""

    def __init__(self) -> None:
        self._batches: list[Pairs] = []

    def add(self, batch_means: Mapping[str, float], weight: float) -> None:
        """Add the means of one batch; ``weight`` is its number of samples."""
        if not (weight >= 0 and math.isfinite(weight)):
            raise ConfigurationError(f"got weight {weight!r}: it counts samples and must be finite and >= 0")
        weight = float(weight)
        self._batches.append({name: (float(value) * weight, weight) for name, value in batch_means.items()})

    @property
    def pairs(self) -> Pairs:
        return add_pairs(self._batches)
