"""When each phase of a worker began and ended, written to a file as the worker leaves; see `platoon launch --trace`."""

from __future__ import annotations

import collections
import contextlib
import os
from pathlib import Path

import msgspec

from platoon_base.system.own_files import write_whole

__all__ = ["MOST_SPANS", "SpanRecorder", "Spans"]

MOST_SPANS = 50_000  # of one process; the latest ones stay


class Spans(msgspec.Struct):
    """The phases of one process of a rank.

    Attributes
    ----------
    rank : int
    spans : list of (int, float, float)
        The phase, or `STEP`, and its begin and end in seconds of the monotonic clock.
    """

    rank: int
    spans: list[tuple[int, float, float]]


class SpanRecorder:
    """Keeps the latest spans of a worker.

    Parameters
    ----------
    folder : path
    rank : int
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        self._rank, self._path = rank, Path(folder) / f"rank{rank}-{os.getpid()}.json"
        self._spans: collections.deque[tuple[int, float, float]] = collections.deque(maxlen=MOST_SPANS)

    def record(self, phase: int, began: float, ended: float) -> None:
        """Keep a span."""
        self._spans.append((phase, began, ended))

    def write(self) -> None:
        """Write the file; a disk that is full costs the trace, not the training."""
        found = Spans(self._rank, list(self._spans))
        with contextlib.suppress(OSError):
            write_whole(self._path, msgspec.json.encode(found))
