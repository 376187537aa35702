"""The option ``--trace`` of `platoon launch`: the phases of all workers on one clock."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from platoon_base.cli.commands.arguments import result_file
from platoon_base.cli.observers import Observed, Option
from platoon_base.cli.run_files import write_text
from platoon_base.controller.outcome import Result, Snapshot
from platoon_base.coordination.story import Entry
from platoon_base.shm.phases import PHASES, STEP
from platoon_base.system.environment import TRACE
from platoon_base.system.job_paths import path_of
from platoon_base.worker.progress_row import Spans

log = logging.getLogger(__name__)

_MOST_SPANS = 1_000_000  # The limit for all workers: browsers load as many in seconds.
_STEPS, _PHASES = 1, 2  # Tracks of a worker.


_option = click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    callback=result_file,
    help="At the end write the steps and phases of this host's workers, the latest 50,000 of "
    "each, as a trace for https://ui.perfetto.dev.",
)


class TraceFile:
    """Lets workers that are started record their phases, and writes the trace at the end."""

    name, opening, limit_s = "the trace", "", None

    def __init__(self, path: Path, job: Observed) -> None:
        self._path, self._story = path, job.story
        self._wall, self._start = time.time(), time.monotonic()
        self._parts = path_of(job.folder.absolute(), "trace")  # Workers make it.
        os.environ[TRACE] = str(self._parts)

    def take(self, snapshot: Snapshot) -> None:
        pass

    def close(self, result: Result | None = None) -> None:
        del os.environ[TRACE]
        try:
            events = events_of(_read(self._parts), self._story.entries, self._wall, self._start)
            found = {"traceEvents": events, "displayTimeUnit": "ms"}
            write_text(self._path, msgspec.json.encode(found).decode(), "the trace")
        finally:
            shutil.rmtree(self._parts, ignore_errors=True)


def _read(folder: Path) -> list[Spans]:
    found = []
    for path in sorted(folder.glob("rank*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Spans))
        except (OSError, msgspec.MsgspecError) as exc:
            log.warning("cannot read a part of the trace: %s: %s", path, exc)
    return found


def events_of(parts: Sequence[Spans], story: Iterable[Entry], wall: float, start: float) -> list[dict[str, Any]]:
    """Return the events of a trace in Chrome's format, with a process for each worker."""
    # The zero of the trace: ``wall`` in seconds since the epoch, ``start`` in monotonic seconds.
    events: list[dict[str, Any]] = []
    for rank in sorted({part.rank for part in parts}):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"worker {rank}"}})
        for track, name in ((_STEPS, "steps"), (_PHASES, "phases")):
            events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": name}})
    most = _MOST_SPANS // max(1, len(parts))
    for part in parts:
        for phase, began, ended in part.spans[-most:]:
            track, name = (_STEPS, "step") if phase == STEP else (_PHASES, PHASES[phase])
            at, end = _microseconds(began - start), _microseconds(ended - start)
            events.append({"ph": "X", "pid": part.rank, "tid": track, "name": name, "ts": at, "dur": end - at})
    for entry in story:
        at, text = _microseconds(entry.at - wall), entry.line.partition("  ")[2]
        # An event of a worker, or of the whole job ("g" for global).
        places = entry.numbers if entry.who == "rank" else [0]
        scope = "p" if entry.who == "rank" else "g"
        events += [{"ph": "i", "s": scope, "pid": place, "tid": _STEPS, "name": text, "ts": at} for place in places]
    return events


def _microseconds(seconds: float) -> float:
    """Return eighths of a microsecond: Perfetto drops a span that rounding moves into the next."""
    return round(8e6 * seconds) / 8


OPTION = Option(_option, "trace_file", TraceFile)
