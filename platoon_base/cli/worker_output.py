"""What workers write: lines of their logs, warnings, and failures."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from platoon_base.cli.run_files import tail
from platoon_base.controller.processes import Exit
from platoon_base.job.starting import log_file
from platoon_base.system.environment import TORCH_ERROR_FILE
from platoon_base.system.job_paths import path_of
from platoon_base.system.own_files import open_regular
from platoon_base.worker_process.failure import INTERRUPTED, Failure, error_file, read_failure, write_error_file

CHUNK_BYTES = 2**20  # At most this is read from a file in one call.


class LogFollower:
    """Follows one file, which need not exist yet and may be truncated."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset  # The next byte to read.
        self.rest = b""  # An incomplete line.

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


_BEHIND_BYTES = 2**24  # A reader further behind skips to a position near the end.
_LINE_BYTES = 2**16  # Longer lines are progress bars.
_SHOWN_BYTES = 2000
_LOGGED = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} rank [\d-]+ (?:%s) [\w.]+"
_NOISE = re.compile(_LOGGED % b"INFO|DEBUG")
# In the format of `child.set_up_logging`, or in Python's, from processes of a worker.
_WARNING = re.compile(_LOGGED % b"WARNING|ERROR|CRITICAL" + rb": |:\d+: PlatoonWarning: ")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class NewLine(NamedTuple):
    file: int  # Number of the file.
    text: str  # At most 2000 bytes; of a warning only its message.
    is_warning: bool  # Whether it is a warning of this package.


class _Log(LogFollower):
    """A follower that skips the lines of an earlier run, and a part that is shown otherwise."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.offset = self.size()
        self.end: int | None = None
        # Offsets of a part that is shown otherwise; an end of 0 is not known yet.
        self.skips: tuple[int, int] | None = None

    def read_new(self) -> tuple[bytes, int]:
        """Return the new bytes, at most a chunk, and how many bytes before them were skipped."""
        end = self.size() if self.end is None else self.end
        behind = end - self.offset
        left_out = behind - CHUNK_BYTES if behind > _BEHIND_BYTES else 0
        if left_out:
            self.offset, self.rest = self.offset + left_out, b""
        if self.skips is not None and self.skips[0] <= self.offset:
            if not self.skips[1]:
                return b"", left_out
            self.offset, self.skips = max(self.offset, self.skips[1]), None
        self.end = None
        return self.read(end if self.skips is None else min(end, self.skips[0])), left_out

    def new_lines(self, data: bytes, last: bool) -> list[bytes]:
        """Return the new whole lines; with ``last`` also an incomplete one."""
        lines = self.lines(data)
        if len(self.rest) > _LINE_BYTES:
            self.rest = self.rest[:_SHOWN_BYTES] + b"..." + self.rest[-_LINE_BYTES // 2 :]
        return [*lines, *self.flush()] if last else lines


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
            log.end = log.size()

    def skip(self, file: int, begin: int, end: int) -> None:
        """Skip the lines between two offsets of a file; an end of 0 is not known yet."""
        log = self._logs[file]
        if log.offset <= max(begin, end - 1):
            log.skips = (begin, end)

    def new(self, last: bool = False) -> Iterator[NewLine]:
        """Yield the lines since the last call; with ``last`` also incomplete ones."""
        for i, log in enumerate(self._logs):
            data, left_out = log.read_new()
            while last and (more := log.read_new()[0]):
                data += more
            lines = log.new_lines(data, last)
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
                yield NewLine(i, f"... {left_out:,} bytes omitted, see {log.path}", False)
            yield from self._found(i, lines[first:])

    def unfinished(self, file: int) -> str:
        """Return the incomplete last line of a file, such as a progress bar."""
        rest = self._logs[file].rest
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


_HELD_S = 1.0  # The same warning of other workers is collected for this time.
_MAX_ALIKE = 5  # Limit on texts of one worker that differ only in numbers.
_MAX_KINDS = 1000
_AGAIN_CHARACTERS = 60


class _Warning:
    def __init__(self, text: str, source: int, now: float) -> None:
        self.text = text
        self.fresh = {source}
        self.shown: set[int] = set()
        self.since = now


class WorkerWarnings:
    """Collects warnings of workers; texts that differ only in numbers count as one."""

    def __init__(self, workers: int) -> None:
        self._workers = workers  # The data server's log has this number.
        self._texts: dict[tuple[int, str], list[str]] = {}  # keys: worker and common pattern
        self._warnings: dict[tuple[str, int], _Warning] = {}

    def take(self, line: NewLine, now: float) -> None:
        text = re.sub(rf"^rank {line.file}: ", "", line.text)
        kind = re.sub(r"\d+", "0", text)
        texts = self._texts.setdefault((line.file, kind), [])
        key = kind, len(texts)
        if text in texts or len(texts) == _MAX_ALIKE or (key not in self._warnings and self._is_full):
            return
        texts.append(text)
        known = self._warnings.get(key)
        if known is None:
            self._warnings[key] = _Warning(text, line.file, now)
            return
        known.since = known.since if known.fresh else now
        known.fresh.add(line.file)

    @property
    def _is_full(self) -> bool:
        return len(self._warnings) >= _MAX_KINDS

    def new(self, now: float, last: bool = False) -> Iterator[str]:
        """Yield a line for each warning whose delay is over; with ``last``, for all."""
        for warning in self._warnings.values():
            if not warning.fresh or not (
                last or now - warning.since >= _HELD_S or len(warning.fresh | warning.shown) >= self._workers
            ):
                continue
            again, names = bool(warning.shown), self._names(warning.fresh)
            warning.shown |= warning.fresh
            warning.fresh = set()
            text = f"{warning.text[:_AGAIN_CHARACTERS]}..." if again else warning.text
            yield f"WARNING, {names}{' too' if again else ''}: {text}"

    def _names(self, sources: set[int]) -> str:
        names = [name_workers(ranks)] if (ranks := [each for each in sources if each < self._workers]) else []
        return " and ".join(names + ["data server"] * (self._workers in sources))


# Delay of a failure that another worker caused: that worker's failure is shown first.
_FAILURE_HELD_S = 0.5
_KEPT = 50  # Failures are compared with at most this many earlier ones.
_CODE_CHARACTERS = 200


def name_workers(ranks: Iterable[int]) -> str:
    """Format ranks: ``worker 3``, ``workers 0, 2 to 5``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    several = len(runs) > 1 or len(runs[0]) > 1
    names = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"worker{'s' * several} {', '.join(names)}"


def describe(folder: Path, ended: Exit) -> str:
    """Return why a worker ended: its exception, or its status and the end of its log."""
    failure = ended.failure
    if failure is None or not (failure.shown or _has_reason(failure)):
        path = ended.log_file or log_file(folder, ended.rank)
        where = f" ({failure.where})" if failure is not None and failure.where else ""
        return f"{name_workers([ended.rank])}: {ended}{where}; the end of {path}:\n{tail(path, ended.log_begin)}"
    return _block(folder, [ended.rank], failure)


def _has_reason(failure: Failure) -> bool:
    is_number = failure.kind == "SystemExit" and failure.text.lstrip("-").isdigit()
    return not is_number and failure.kind != INTERRUPTED


def _block(folder: Path, ranks: Sequence[int], failure: Failure) -> str:
    lines = [f"{name_workers(ranks)} failed: {failure.what}"]
    if failure.file:
        lines.append(f"  at {failure.file}:{failure.line}, in {failure.function}: {failure.code[:_CODE_CHARACTERS]}")
    lines.append(f"  log: {log_file(folder, ranks[0])}")
    return "\n".join([*lines, failure.shown.rstrip()]).rstrip()


class Failures:
    """Finds failures, in the workers' error files and among ended processes; returns each once."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._paths = [error_file(log_file(folder, rank)) for rank in range(workers)]
        self._stamps: list[tuple[int, int] | None] = [_stamp(path) for path in self._paths]
        self._known: set[tuple[int, float]] = set()  # (rank, time) of returned or delayed ones
        self._said: list[Failure] = []
        self._held: list[Failure] = []
        self.latest: dict[int, Failure] = {}  # Failures by rank; the caller empties it.
        self.failing: set[int] = set()  # Ranks with an exception other than Ctrl-C's.

    def new(self, failed: Sequence[Exit] = (), stopping: bool = False, last: bool = False) -> Iterator[str]:
        """Yield a text for each failure since the last call, also of processes in ``failed``."""
        fresh = self._held + [failure for failure in self._read() if self._is_new(failure.rank, failure.at)]
        silent = []
        for ended in failed:
            if not self._is_new(ended.rank, ended.at):
                continue
            if ended.failure is not None and _has_reason(ended.failure):
                fresh.append(ended.failure)
            else:
                silent.append(ended)
        texts = [(ended.at, describe(self._folder, ended)) for ended in silent]
        own = [failure for failure in fresh if not failure.follows]
        texts += self._grouped(sorted(own, key=lambda failure: failure.at))
        self._held = [failure for failure in fresh if failure.follows]
        yield from (text for _, text in sorted(texts, key=lambda timed: timed[0]))
        if self._held and (texts or self._said or last or self._held[0].at < time.time() - _FAILURE_HELD_S):
            held, self._held = self._held, []
            yield from () if stopping and not self._said else self._followed(held)

    def _read(self) -> Iterator[Failure]:
        for rank, path in enumerate(self._paths):
            stamp = _stamp(path)
            if stamp == self._stamps[rank]:
                continue
            self._stamps[rank] = stamp
            failure = read_failure(path, rank)
            self.failing.discard(rank)  # A restart removes the file.
            if failure is not None:
                self.failing |= set() if failure.kind == INTERRUPTED else {rank}
                self.latest[rank] = failure
                # Otherwise the end of its log says more, after the process has ended.
                if _has_reason(failure):
                    yield failure

    def _is_new(self, rank: int, at: float) -> bool:
        is_new = (rank, at) not in self._known
        self._known.add((rank, at))
        return is_new

    def _grouped(self, failures: Sequence[Failure]) -> Iterator[tuple[float, str]]:
        """Yield times and blocks of new kinds of failures, with the other workers that have the same."""
        again: dict[int, list[Failure]] = {}
        groups: list[list[Failure]] = []
        for failure in failures:
            i = next((i for i, said in enumerate(self._said) if failure.same_as(said)), None)
            group = next((group for group in groups if failure.same_as(group[0])), None)
            if i is not None:
                again.setdefault(i, []).append(failure)
            elif group is not None:
                group.append(failure)
            else:
                groups.append([failure])
        for i, others in again.items():
            names = name_workers(failure.rank for failure in others)
            yield others[0].at, f"{names} too: {self._said[i].kind} ({self._said[i].where})"
        for group in groups:
            self._said = [*self._said[-_KEPT:], group[0]]
            yield group[0].at, _block(self._folder, [group[0].rank], group[0])
            if len(group) > 1:
                names = name_workers(failure.rank for failure in group[1:])
                yield group[0].at, f"{names} too: {group[0].kind} ({group[0].where})"

    def _followed(self, failures: Sequence[Failure]) -> Iterator[str]:
        kinds: dict[tuple[str, str], list[Failure]] = {}
        for failure in failures:
            kinds.setdefault((failure.kind, failure.where), []).append(failure)
        for group in kinds.values():
            names = name_workers(failure.rank for failure in group)
            yield f"{names} then: {group[0].what} ({group[0].where})"


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def write_first_error(folder: Path, failed: Exit | None) -> None:
    """Write the failure that ended a job to ``error.json``, and to the file of torchrun."""
    if failed is None:
        return
    failure = failed.failure or Failure(failed.rank, "ProcessEnded", str(failed), failed.at)
    paths = [path_of(folder, "first_failure")]
    paths += [Path(os.environ[TORCH_ERROR_FILE])] if os.environ.get(TORCH_ERROR_FILE) else []
    for path in paths:
        try:
            write_error_file(path, failure)
        except OSError:
            continue  # The failure is also in the log.
