"""Names and fingerprints of the data that a worker divides with the others, so that they notice other data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from platoon_base.fingerprint import fingerprint
from platoon_base.sharding import START, Position

__all__ = ["SAME_DATA_REMEDY", "DataId", "DataSeen", "kind_of"]

SAME_DATA_REMEDY = (
    "What is divided has to be the same rows in the same order on all workers: otherwise rows that one trains on are "
    "among those that another validates on, and some are left out. Give random splits, shuffles and noise before it a "
    "seed, such as train_test_split(x, y, random_state=0) or numpy.random.RandomState(0); put noise that shall differ "
    "into the mini-batches. To divide data that differ on purpose, or by rounding, divide their row numbers: "
    "numpy.arange(len(x)) in place of x"
)


class DataId(NamedTuple):
    """The name of a data set, the same on all workers, and its fingerprint.

    Attributes
    ----------
    name : str
    fingerprint : str
    """

    name: str
    fingerprint: str


class DataSeen:
    """Counts the data sets of each kind that a worker has divided, in the order in which they first came.

    Parameters
    ----------
    resumed_at : Position
        Where this worker goes on. Workers of a resumed job may go on from different positions, such as different
        epochs, and come to other data first. So the names tell the position, and only workers that went on from the
        same one are compared.
    """

    def __init__(self, resumed_at: Position = START) -> None:
        self._seen: dict[str, set[str]] = {}
        position = f" from epoch {resumed_at.epoch}, mini-batch {resumed_at.epoch_steps} on"
        self._position = "" if resumed_at == START else position

    def register(self, data: tuple[Any, ...], kind: str) -> DataId | None:
        """Return name and fingerprint of data; None if they came before, or draw random numbers at each reading.

        Parameters
        ----------
        data : tuple
            Anything that `fingerprint` takes.
        kind : str
            Data sets of one kind are counted together.
        """
        mark = fingerprint(*data)
        if len(kind) > 100:
            kind = f"{kind[:80]}... {fingerprint(kind)}"
        seen = self._seen.setdefault(kind, set())
        if mark in seen or mark != fingerprint(*data):
            return None
        seen.add(mark)
        return DataId(f"data set {len(seen)} of {kind}{self._position}", mark)


def kind_of(*data: Any) -> str:
    """Describe a row of the data by dtype and shape; the number of rows is no part of it."""
    return f"rows like {', '.join(map(_kind, data))}"


def _kind(data: Any) -> str:
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{key}: {_kind(data[key])}" for key in sorted(data, key=str)) + "}"
    if hasattr(data, "shape") and hasattr(data, "__getitem__"):
        return f"{getattr(data, 'dtype', type(data).__name__)}{[n if n is None else int(n) for n in data.shape[1:]]}"
    return type(data).__name__
