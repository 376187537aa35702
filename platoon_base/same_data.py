"""What a worker tells the others of the data that it divides with them, so that they notice other data."""

from __future__ import annotations

from typing import Any, NamedTuple

from platoon_base.fingerprint import fingerprint

__all__ = ["REMEDY", "DataSeen", "Told"]

REMEDY = (
    "What is divided has to be the same rows in the same order on all workers: otherwise rows that one trains on are "
    "among those that another validates on, and some are left out. Give random splits, shuffles and noise before it a "
    "seed, such as train_test_split(x, y, random_state=0) or numpy.random.RandomState(0); put noise that shall differ "
    "into the mini-batches"
)


class Told(NamedTuple):
    """A name for data that is the same on all workers, and what they are.

    Attributes
    ----------
    name : str
    fingerprint : str
    """

    name: str
    fingerprint: str


class DataSeen:
    """Counts the data sets of each kind of rows that a worker has divided, in the order in which they first came."""

    def __init__(self) -> None:
        self._seen: dict[str, list[str]] = {}

    def tell(self, data: tuple[Any, ...]) -> Told | None:
        """Return what to tell of data; None of such that came before."""
        mark, kind = fingerprint(*data), ", ".join(_kind(part) for part in data)
        if len(kind) > 100:
            kind = f"{kind[:80]}... {fingerprint(kind)}"
        seen = self._seen.setdefault(kind, [])
        if mark in seen:
            return None
        seen.append(mark)
        return Told(f"data set {len(seen)} of rows like {kind}", mark)


def _kind(data: Any) -> str:
    """Describe rows, not how many there are."""
    if hasattr(data, "shape"):
        return f"{getattr(data, 'dtype', type(data).__name__)}{[int(n) for n in data.shape[1:]]}"
    return type(data).__name__
