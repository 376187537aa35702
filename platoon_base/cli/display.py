"""The display of a running job: live lines on a terminal, plain lines in a pipe, a summary at the end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from platoon_base.checkpoints.writer import Tally
from platoon_base.controller.controller import Result, Snapshot
from platoon_base.coordination.roster import Participant, Phase
from platoon_base.shm.job_state import Progress

__all__ = ["Display", "cut", "summary", "write_summary"]

_PLAIN_EVERY_S, _REPEAT_EVERY_S = 2.0, 20.0
_VALUE_CHARACTERS, _LINE_CHARACTERS = 60, 2000


class Display:
    """Shows snapshots of a job on a console; a context manager.

    Parameters
    ----------
    console : rich.console.Console
        A terminal gets one live line a worker and a total; anything else gets a plain line now and then.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._rates: dict[int, tuple[float, int]] = {}
        self._next_plain = self._next_repeat = 0.0
        self._last_plain = ""
        self._latest: Snapshot | None = None  # not printed yet

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._latest is not None and _plain(self._latest) != self._last_plain:
            self._print(self._latest)

    def show(self, snapshot: Snapshot, draw: bool = True) -> None:
        """Show the state of the job; on a terminal without ``draw`` only when something is printed above it."""
        if self._live is not None:
            self._live.update(Group(_table(snapshot), Text(_total(snapshot))), refresh=draw)
        elif time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + _PLAIN_EVERY_S
            if _plain(snapshot) != self._last_plain or time.monotonic() >= self._next_repeat:
                self._print(snapshot)
        else:
            self._latest = snapshot

    def _print(self, snapshot: Snapshot) -> None:
        self._next_repeat = time.monotonic() + _REPEAT_EVERY_S
        self._last_plain = _plain(snapshot)
        self._latest = None
        line = f"[{snapshot.seconds:6.1f} s] {self._last_plain}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _rate(progress: Progress) -> float:
    """Mini-batches per second since the first one."""
    seconds = progress.updated - progress.started
    return (progress.steps - progress.steps_before_start) / seconds if seconds > 0 else math.nan


def _sync_share(progress: Progress) -> float:
    seconds = progress.updated - progress.started
    return progress.sync_seconds / seconds if seconds > 0 else math.nan


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _table(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("worker", "state", "epoch", "batches/s", "loss", "in sync"):
        table.add_column(heading, justify="left" if heading in ("worker", "state") else "right")
    for participant in snapshot.participants:
        table.add_row(*_cells(participant, snapshot.progress[participant.rank]))
    return table


def _total(snapshot: Snapshot) -> str:
    state = f"stopping: {snapshot.stop_reason}" if snapshot.stop_reason else f"{snapshot.seconds:.0f} s"
    return f"total  {state}  {_number(_total_rate(snapshot), '.1f')} batches/s  {_values(snapshot)}"


def _cells(participant: Participant, progress: Progress) -> list[str]:
    return [
        f"{participant.rank} {participant.device}".strip(),
        _state_of(participant, progress),
        str(progress.epoch),
        _number(_rate(progress), ".1f"),
        _number(progress.loss, ".4g"),
        _number(_sync_share(progress), ".1%"),
    ]


def _state_of(participant: Participant, progress: Progress) -> str:
    """Name the phase; a model that is shared but not trained yet is most likely still being compiled."""
    if participant.phase is Phase.TRAINING and progress.started == 0:
        return "starting"
    return participant.phase.name.lower()


def _total_rate(snapshot: Snapshot) -> float:
    rates = [
        r for m in snapshot.participants if not m.phase.gone and not math.isnan(r := _rate(snapshot.progress[m.rank]))
    ]
    return sum(rates) if rates else math.nan


def cut(text: str, characters: int) -> str:
    """Return a text, shortened to so many characters."""
    return text if len(text) <= characters else f"{text[:characters]}..."


def _values(snapshot: Snapshot) -> str:
    shown = [f"CHECKPOINTS MISSED {snapshot.missed_checkpoints}"] if snapshot.missed_checkpoints else []
    for name, value in snapshot.reported.items():
        shown.append(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {cut(str(value), _VALUE_CHARACTERS)}"
        )
    return cut("  ".join(shown), _LINE_CHARACTERS)


def _plain(snapshot: Snapshot) -> str:
    workers = []
    for participant in snapshot.participants:
        _, state, epoch, rate, loss, share = _cells(participant, snapshot.progress[participant.rank])
        workers.append(f"worker {participant.rank}: {state} epoch {epoch} {rate} batches/s loss {loss} sync {share}")
    return " | ".join([*workers, f"total: {_values(snapshot) or '-'}"])


def summary(result: Result, workers: int) -> dict[str, Any]:
    """Return the summary of a job that ended: the reported values, and how it ended."""
    return {
        **result.reported,
        "workers": workers,
        "seconds": round(result.seconds, 3),
        "stopped_by": result.stopped_by,
        "restarts": result.restarts,
        "shared_nothing": list(result.shared_nothing),
        **_of_checkpoints(result.checkpoints),
        "status": result.status,
    }


def _of_checkpoints(tally: Tally | None) -> dict[str, Any]:
    if tally is None:
        return {}
    found = {"checkpoints": tally.written, "checkpoints_missed": tally.missed}
    return {**found, "not_saved": tally.unsaved} if tally.unsaved else found


def write_summary(path: Path, values: Mapping[str, Any]) -> None:
    """Write a summary as JSON, which knows no NaN and no infinity: null stands for them."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    path.write_text(json.dumps(plain, indent=2) + "\n")
