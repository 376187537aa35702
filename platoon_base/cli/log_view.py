"""The logs of a job as `platoon logs` shows them: the last lines and, on request, new ones."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

from platoon_base.cli.log_folder import log_file
from platoon_base.cli.log_lines import CHUNK_BYTES, LogFollower
from platoon_base.system.job_paths import pattern_of
from platoon_base.system.regular_files import open_regular

__all__ = ["LogView", "ranks_in"]

_NAME = re.compile(pattern_of("log"))
_BLOCK_BYTES = 1 << 16


def ranks_in(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match is not None)


def begin_of_last_lines(file: BinaryIO, count: int) -> int:
    """Return the offset of the last ``count`` lines of a file; 0 means all."""
    end = file.seek(0, os.SEEK_END)
    if not count:
        return 0
    position, found = end, -1  # No line starts after the last line's end.
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
    """Writes the last ``lines`` (0: all) of logs, and then new ones; without a rank, all logs."""

    def __init__(self, folder: Path, rank: int | None, lines: int, stream: BinaryIO) -> None:
        self._folder = folder
        self._rank = rank
        self._lines = lines
        self._stream = stream
        self._logs: dict[int, LogFollower] = {}

    def show(self, last: bool = False) -> None:
        """Write new lines; with ``last`` also incomplete ones."""
        for rank in ranks_in(self._folder) if self._rank is None else [self._rank]:
            log = self._log(rank)
            while log is not None and self._show(rank, log, last):
                pass
        self._stream.flush()

    def _log(self, rank: int) -> LogFollower | None:
        """Return the follower of a log, at first before its last lines; None without a log."""
        if rank not in self._logs:
            path = log_file(self._folder, rank)
            try:
                with open_regular(path) as file:
                    self._logs[rank] = LogFollower(path, begin_of_last_lines(file, self._lines))
            except OSError:
                return None
        return self._logs[rank]

    def _show(self, rank: int, log: LogFollower, last: bool) -> bool:
        """Write a part of the new lines of one log; return whether there is more."""
        data = log.read()
        more = len(data) == CHUNK_BYTES
        if self._rank is not None:
            self._stream.write(data)
            return more
        lines = log.lines(data)
        if (last and not more) or len(log.rest) > CHUNK_BYTES:
            lines += log.flush()
        self._stream.write(b"".join(b"[%d] %s\n" % (rank, line) for line in lines))
        return more
