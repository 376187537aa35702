"""New lines of growing log files: warnings of this package, and all lines of some files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from platoon_base.cli.log_follower import CHUNK_BYTES, LogFollower

__all__ = ["LogLines", "NewLine"]

_BEHIND_BYTES = 2**24  # A reader further behind skips to a position near the end.
_LINE_BYTES = 2**16  # Longer lines are progress bars.
_SHOWN_BYTES = 2000
_LOGGED = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} rank [\d-]+ (?:%s) [\w.]+"
_NOISE = re.compile(_LOGGED % b"INFO|DEBUG")
# In the format of `child.set_up_logging`, or in Python's, from processes of a worker.
_WARNING = re.compile(_LOGGED % b"WARNING|ERROR|CRITICAL" + rb": |:\d+: PlatoonWarning: ")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class NewLine(NamedTuple):
    file: int  # the number of the file
    text: str  # at most 2000 bytes; only the message of a warning
    is_warning: bool  # a warning of this package


class _Log:
    """The position in one file, and the part to skip."""

    def __init__(self, path: Path) -> None:
        self.follower = LogFollower(path)
        self.follower.offset = self.follower.size()  # Skip lines of an earlier run.
        self.end: int | None = None
        # Offsets of a part that is shown otherwise; an end of 0 is not known yet.
        self.skips: tuple[int, int] | None = None

    def read(self) -> tuple[bytes, int]:
        """Return the new bytes, at most a chunk, and how many bytes before them were skipped."""
        log = self.follower
        end = log.size() if self.end is None else self.end
        behind = end - log.offset
        left_out = behind - CHUNK_BYTES if behind > _BEHIND_BYTES else 0
        if left_out:
            log.offset, log.rest = log.offset + left_out, b""
        if self.skips is not None and self.skips[0] <= log.offset:
            if not self.skips[1]:
                return b"", left_out
            log.offset, self.skips = max(log.offset, self.skips[1]), None
        self.end = None
        return log.read(end if self.skips is None else min(end, self.skips[0])), left_out

    def lines(self, data: bytes, last: bool) -> list[bytes]:
        """Return the new whole lines; with ``last`` also an incomplete one."""
        log = self.follower
        lines = log.lines(data)
        if len(log.rest) > _LINE_BYTES:
            log.rest = log.rest[:_SHOWN_BYTES] + b"..." + log.rest[-_LINE_BYTES // 2 :]
        return [*lines, *log.flush()] if last else lines


class LogLines:
    """Finds new lines to show in several files: all in ``whole``, else this package's warnings."""

    def __init__(self, paths: Sequence[Path], whole: Collection[int] = (), most_bytes: int = CHUNK_BYTES) -> None:
        self._logs = [_Log(path) for path in paths]
        self._whole = frozenset(whole)
        self._most_bytes = most_bytes

    def show_whole(self, file: int) -> None:
        if file not in self._whole and file < len(self._logs):
            self._whole |= {file}

    def measure(self) -> None:
        """Make the next `new` end at the files' present sizes."""
        for log in self._logs:
            log.end = log.follower.size()

    def skip(self, file: int, begin: int, end: int) -> None:
        """Skip the lines between two offsets of a file; an end of 0 is not known yet."""
        log = self._logs[file]
        if log.follower.offset <= max(begin, end - 1):
            log.skips = (begin, end)

    def new(self, last: bool = False) -> Iterator[NewLine]:
        """Yield the lines since the last call; with ``last`` also incomplete ones."""
        for i, log in enumerate(self._logs):
            data, left_out = log.read()
            while last and (more := log.read()[0]):
                data += more
            lines = log.lines(data, last)
            if i not in self._whole:
                yield from (line for line in self._found(i, lines) if line.is_warning)
                continue
            first, size = len(lines), 0
            while first and size <= self._most_bytes:
                first -= 1
                size += min(len(lines[first]), _SHOWN_BYTES) + 1
            left_out += sum(map(len, lines[:first])) + first
            if left_out:
                yield from (line for line in self._found(i, lines[:first]) if line.is_warning)
                yield NewLine(i, f"... {left_out:,} bytes omitted, see {log.follower.path}", False)
            yield from self._found(i, lines[first:])

    def unfinished(self, file: int) -> str:
        """Return the incomplete last line of a file, such as a progress bar."""
        rest = self._logs[file].follower.rest
        return "" if _NOISE.search(rest[:_SHOWN_BYTES]) else _plain(rest)

    def _found(self, file: int, lines: Sequence[bytes]) -> Iterator[NewLine]:
        is_source = False  # Python prints the source line after a warning.
        for line in lines:
            warning = _WARNING.search(line)
            logged = _NOISE.search(line) if warning is None else warning
            if logged is not None:
                # An unfinished progress bar may precede a log line.
                bar = line[: logged.start()] if logged[0][:1].isdigit() else b""
                if bar:
                    yield NewLine(file, _plain(bar), False)
            elif not (is_source and line.startswith(b"  ")):
                yield NewLine(file, _plain(line), False)
            if warning is not None:
                yield NewLine(file, line[warning.end() :][:_SHOWN_BYTES].decode(errors="replace").rstrip(), True)
            is_source = warning is not None and b"PlatoonWarning: " in warning[0]


def _plain(line: bytes) -> str:
    """Return a line as a terminal shows it: text after the last return, no control characters."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2]
    cut = text[: _SHOWN_BYTES // 2] + b"..." + text[-_SHOWN_BYTES // 2 :] if len(text) > _SHOWN_BYTES else text
    return _CONTROL.sub("", cut.decode(errors="replace"))
