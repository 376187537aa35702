"""Names and fingerprints of the data that workers divide, to detect that their data differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from platoon_base.fingerprint import fingerprint
from platoon_base.sharding import START, Position

SAME_DATA_REMEDY = (
    "Data to divide must be the same rows in the same order on all workers: otherwise some rows "
    "are used both for training and for validation, and some are not used at all. Seed random "
    "splits, shuffles and noise, for example train_test_split(x, y, random_state=0) or "
    "numpy.random.RandomState(0). Add noise that must differ to the mini-batches. To divide data "
    "that differ on purpose, or by rounding, divide their row numbers: pass numpy.arange(len(x)) "
    "instead of x"
)


class DataId(NamedTuple):
    """The name of a data set, the same on all workers, and its fingerprint."""

    name: str
    fingerprint: str


class DataSeen:
    """Numbers the data sets of each kind that a worker has divided, by their first use."""

    def __init__(self, resumed_at: Position = START) -> None:
        self._seen: dict[str, set[str]] = {}
        # Workers of a resumed job may use other data first: only equal positions are compared.
        position = f" from epoch {resumed_at.epoch}, mini-batch {resumed_at.epoch_steps} on"
        self._position = "" if resumed_at == START else position

    def register(self, data: tuple[Any, ...], kind: str) -> DataId | None:
        """Return the id of new data; None if they are known, or read differently each time."""
        mark = fingerprint(*data)
        if len(kind) > 100:
            kind = f"{kind[:80]}... {fingerprint(kind)}"
        seen = self._seen.setdefault(kind, set())
        if mark in seen or mark != fingerprint(*data):
            return None
        seen.add(mark)
        return DataId(f"data set {len(seen)} of {kind}{self._position}", mark)


def kind_of(*data: Any) -> str:
    """Describe a row of the data by dtype and shape, without the number of rows."""
    return f"rows like {', '.join(_kind(part) for part in data if part is not None)}"


def _kind(data: Any) -> str:
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{key}: {_kind(data[key])}" for key in sorted(data, key=str)) + "}"
    if hasattr(data, "shape") and hasattr(data, "__getitem__"):
        return f"{getattr(data, 'dtype', type(data).__name__)}{[n if n is None else int(n) for n in data.shape[1:]]}"
    return type(data).__name__
