"""Reads the new bytes and lines of a growing log."""

from __future__ import annotations

import os
from pathlib import Path

from platoon_base.system.regular_files import open_regular

__all__ = ["CHUNK_BYTES", "LogFollower"]

CHUNK_BYTES = 2**20  # the most that is read from a file at once


class LogFollower:
    """Follows one file, which need not exist yet and may be truncated."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset  # the next byte to read
        self.rest = b""  # an incomplete line

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def read(self, end: int | None = None) -> bytes:
        """Return the next bytes before ``end``, at most a chunk."""
        if end == self.offset:
            return b""
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, os.SEEK_END)
                if self.offset > size:  # It was truncated.
                    self.offset = 0
                file.seek(self.offset)
                data = file.read(max(0, min(CHUNK_BYTES, (size if end is None else end) - self.offset)))
        except OSError:
            return b""
        self.offset += len(data)
        return data

    def lines(self, data: bytes) -> list[bytes]:
        """Return the lines that end in these bytes."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines

    def flush(self) -> list[bytes]:
        """Return the incomplete line, if there is one, and end it."""
        rest, self.rest = self.rest, b""
        return [rest] if rest else []
