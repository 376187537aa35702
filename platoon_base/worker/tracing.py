"""Times of a worker's phases, written to a file when it leaves; see `platoon launch --trace`."""

from __future__ import annotations

import collections
import contextlib
import os
from pathlib import Path

import msgspec

from platoon_base.system.own_files import write_whole

MOST_SPANS = 50_000


class Spans(msgspec.Struct):
    """The phases of a process: phase or `STEP`, begin and end (monotonic clock, seconds)."""

    rank: int
    spans: list[tuple[int, float, float]]


class SpanRecorder:
    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        self._rank, self._path = rank, Path(folder) / f"rank{rank}-{os.getpid()}.json"
        self._spans: collections.deque[tuple[int, float, float]] = collections.deque(maxlen=MOST_SPANS)

    def record(self, phase: int, began: float, ended: float) -> None:
        self._spans.append((phase, began, ended))

    def write(self) -> None:
        """Write the file; errors are ignored, so a full disk does not stop the training."""
        found = Spans(self._rank, list(self._spans))
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(found))
