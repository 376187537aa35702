"""The logs of a job as `platoon logs` shows them: their last lines and, on request, new ones."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import BinaryIO

from platoon_base.cli.log_folder import log_file
from platoon_base.system.regular_files import open_regular

__all__ = ["LogView", "ranks_in"]

_NAME = re.compile(r"rank(\d+)\.log")
_BLOCK_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20


def ranks_in(folder: Path) -> list[int]:
    """Return the ranks that have a log in a folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match is not None)


def begin_of_last_lines(file: BinaryIO, count: int) -> int:
    """Return the offset of the last ``count`` lines of a file; 0 for all."""
    end = file.seek(0, os.SEEK_END)
    if not count:
        return 0
    position, found = end, -1  # no line begins after the last line's end
    while position > 0:
        size = min(_BLOCK_BYTES, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        if position + size == end and not block.endswith(b"\n"):
            found += 1
        for i in reversed([match.start() for match in re.finditer(b"\n", block)]):
            found += 1
            if found == count:
                return position + i + 1
    return 0


class LogView:
    """Writes the last lines of logs, and then new ones, to a stream.

    Parameters
    ----------
    folder : Path
    rank : int or None
        None for all; each line is prefixed by its rank in brackets then.
    lines : int
        Number of last lines to begin with; 0 for all.
    stream : binary file
    """

    def __init__(self, folder: Path, rank: int | None, lines: int, stream: BinaryIO) -> None:
        self._folder = folder
        self._rank = rank
        self._lines = lines
        self._stream = stream
        self._offsets: dict[int, int] = {}
        self._rests: dict[int, bytes] = {}

    def show(self, last: bool = False) -> None:
        """Write new lines; with ``last`` also incomplete ones."""
        for rank in ranks_in(self._folder) if self._rank is None else [self._rank]:
            while self._show(rank, last):
                pass
        self._stream.flush()

    def wait(self, seconds: float) -> None:
        """Wait until there may be new lines."""
        time.sleep(seconds)

    def _show(self, rank: int, last: bool) -> bool:
        """Write some of the new lines of one log; return whether there are more."""
        try:
            with open_regular(log_file(self._folder, rank)) as file:
                first = rank not in self._offsets
                begin = begin_of_last_lines(file, self._lines) if first else self._offsets[rank]
                if begin > file.seek(0, os.SEEK_END):  # the file was replaced by a new one
                    begin = 0
                file.seek(begin)
                data = file.read(_CHUNK_BYTES)
        except OSError:
            return False
        self._offsets[rank] = begin + len(data)
        if self._rank is not None:
            self._stream.write(data)
            return len(data) == _CHUNK_BYTES
        *lines, rest = (self._rests.get(rank, b"") + data).split(b"\n")
        if rest and (last or len(rest) > _CHUNK_BYTES):
            lines, rest = [*lines, rest], b""
        self._rests[rank] = rest
        self._stream.write(b"".join(b"[%d] %s\n" % (rank, line) for line in lines))
        return len(data) == _CHUNK_BYTES
