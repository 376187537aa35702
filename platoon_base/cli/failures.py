"""The failures of workers as texts for the user: each failure once, as soon as it is known."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from platoon_base.cli.run_files import log_file, tail
from platoon_base.controller.processes import Exit
from platoon_base.system.environment import TORCH_ERROR_FILE
from platoon_base.system.job_paths import path_of
from platoon_base.worker_process.failure import INTERRUPTED, Failure, error_file, read_failure, write_error_file

__all__ = ["Failures", "describe", "name_workers", "write_first_error"]

# Delay of a failure that another worker caused: that worker's failure is shown first.
_HELD_S = 0.5
_KEPT = 50  # maximum number of earlier failures to compare with
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
        self.latest: dict[int, Failure] = {}  # failures by rank; the caller empties it
        self.failing: set[int] = set()  # ranks with an exception other than Ctrl-C's

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
        texts = [describe(self._folder, ended) for ended in silent]
        own = [failure for failure in fresh if not failure.follows]
        texts += self._grouped(sorted(own, key=lambda failure: failure.at))
        self._held = [failure for failure in fresh if failure.follows]
        yield from texts
        if self._held and (texts or self._said or last or self._held[0].at < time.time() - _HELD_S):
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

    def _grouped(self, failures: Sequence[Failure]) -> Iterator[str]:
        """Yield a block for each new kind of failure, with the other workers that have the same."""
        again: dict[int, list[int]] = {}
        groups: list[list[Failure]] = []
        for failure in failures:
            i = next((i for i, said in enumerate(self._said) if failure.same_as(said)), None)
            group = next((group for group in groups if failure.same_as(group[0])), None)
            if i is not None:
                again.setdefault(i, []).append(failure.rank)
            elif group is not None:
                group.append(failure)
            else:
                groups.append([failure])
        for i, ranks in again.items():
            yield f"{name_workers(ranks)} too: {self._said[i].kind} ({self._said[i].where})"
        for group in groups:
            self._said = [*self._said[-_KEPT:], group[0]]
            yield _block(self._folder, [group[0].rank], group[0])
            if len(group) > 1:
                yield f"{name_workers(failure.rank for failure in group[1:])} too: {group[0].kind} ({group[0].where})"

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
