"""Reading on in a log that grows: what is new of its bytes, and their lines."""

from __future__ import annotations

import os
from pathlib import Path

from platoon_base.system.regular_files import open_regular

__all__ = ["CHUNK_BYTES", "LogFollower"]

CHUNK_BYTES = 2**20  # one read of one file, however much a worker writes


class LogFollower:
    """Reads on in one file, which need not exist yet and may be begun anew.

    Parameters
    ----------
    path : Path
    offset : int
        The first byte to read.

    Attributes
    ----------
    path : Path
    offset : int
        The next byte to read.
    rest : bytes
        The begin of a line whose end has not been read yet.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.rest = b""

    def size(self) -> int:
        """Return how many bytes the file has; 0 if there is none."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def read(self, end: int | None = None) -> bytes:
        """Return the next bytes, at most a chunk of them, and none from ``end`` on."""
        if end == self.offset:
            return b""
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, os.SEEK_END)
                if self.offset > size:  # it was begun anew
                    self.offset = 0
                file.seek(self.offset)
                data = file.read(max(0, min(CHUNK_BYTES, (size if end is None else end) - self.offset)))
        except OSError:
            return b""
        self.offset += len(data)
        return data

    def lines(self, data: bytes) -> list[bytes]:
        """Return the lines that end in these bytes, which follow those of the last call."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines

    def flush(self) -> list[bytes]:
        """Return the line without an end, if there is one; what follows is a line of its own."""
        rest, self.rest = self.rest, b""
        return [rest] if rest else []
