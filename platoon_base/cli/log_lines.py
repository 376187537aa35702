"""New lines with a mark in growing log files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["MarkedLines"]

_CHUNK_BYTES = 2**20  # at most so much of each file in one look, however much a worker writes
_LINE_BYTES = 2**16  # a longer line is a progress bar's
_SHOWN_BYTES = 2000


class MarkedLines:
    """Reads on in each of several files, and finds the lines that hold a mark.

    Parameters
    ----------
    paths : sequence of Path
        Files; one that does not exist yet may come.
    mark : str
    """

    def __init__(self, paths: Sequence[Path], mark: str) -> None:
        self._paths = list(paths)
        self._mark = mark.encode()
        # Lines of an earlier run do not count.
        self._offsets = [path.stat().st_size if path.is_file() else 0 for path in self._paths]
        self._rests = [b""] * len(self._paths)

    def new(self) -> Iterator[tuple[int, str]]:
        """Yield (number of the file, text after the mark) of each line since the last call."""
        for i, path in enumerate(self._paths):
            try:
                with path.open("rb") as file:
                    file.seek(self._offsets[i])
                    data = file.read(_CHUNK_BYTES)
            except OSError:
                continue
            self._offsets[i] += len(data)
            *lines, self._rests[i] = (self._rests[i] + data).split(b"\n")
            self._rests[i] = self._rests[i][-_LINE_BYTES:]
            for line in lines:
                _, mark, text = line.partition(self._mark)
                if mark:
                    yield i, text[:_SHOWN_BYTES].decode(errors="replace")
