"""The texts that show a running job, drawn from its latest snapshots: a table for terminals, a line for pipes."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from platoon_base.cli.recent import Recent
from platoon_base.controller.outcome import Snapshot
from platoon_base.coordination.phase import Phase
from platoon_base.coordination.roster import Participant
from platoon_base.shm.job_state import Progress

__all__ = ["GAP", "aligned", "cut", "duration", "plain_line", "table", "workers_line"]

GAP = "  "
_VALUE_CHARACTERS, _MOST_VALUE_LINES, _LINE_CHARACTERS = 60, 4, 120
_HEADINGS = ("worker", "state", "epoch", "batches/s", "loss", "in sync")
_WORDS = 2  # columns
_STALLED = "no step for"


class _Row(NamedTuple):
    rank: int
    state: str
    cells: list[str]


def table(recent: Recent, width: int, height: int) -> list[str]:
    """Draw the latest snapshot: a line for each worker, and lines about the whole job below.

    Workers that do not fit into the height are laid out in several columns. If these are too wide, the last line sums
    up the rest, and workers that do not train are listed first.

    Parameters
    ----------
    recent : Recent
    width, height : int
        Of the terminal.

    Returns
    -------
    list of str
        At most ``height`` lines of at most ``width`` columns.
    """
    snapshot = recent.snapshot
    if snapshot is None:
        return []
    first = _first_below(recent, snapshot, width)
    spare = height - 1 - len(snapshot.participants) - len(first)
    below = [*first, *_values_below(snapshot, width, min(max(spare, 2), _MOST_VALUE_LINES))][: max(1, height - 2)]
    room = max(1, height - 1 - len(below))
    rows = [_row(recent, snapshot, participant) for participant in snapshot.participants]
    return [line[:width].rstrip() for line in [*_workers(rows, width, room), *below]]


def _workers(rows: Sequence[_Row], width: int, room: int) -> list[str]:
    """Draw the heading and one line for each worker, with at most ``room`` lines below the heading."""
    columns = -(-len(rows) // room)
    lines = _columns(rows, columns)
    if columns == 1 or max(map(len, lines)) <= width:
        return lines
    columns = max(1, width // (max(map(len, _columns(rows, 1))) + 4))
    odd = sorted(rows, key=lambda row: row.state == "training")
    shown = odd[: max(0, columns * (room - 1))]
    rest = odd[len(shown) :]
    return [*_columns(sorted(shown), columns), f"and {len(rest)} more: {_states(row.state for row in rest)}"]


def _columns(rows: Sequence[_Row], columns: int) -> list[str]:
    """Lay out rows in several columns."""
    count = max(1, -(-len(rows) // columns))
    cells = [row.cells for row in rows]
    blocks = [aligned([_HEADINGS, *cells[i : i + count]], _WORDS) for i in range(0, max(1, len(rows)), count)]
    lines = [" |  ".join(parts) for parts in zip(*(block + [""] * (count + 1 - len(block)) for block in blocks))]
    return lines


def aligned(rows: Sequence[Sequence[str]], words: int) -> list[str]:
    """Lay out cells in columns, with lines of equal length; `rich.table` takes 150 times as long.

    Parameters
    ----------
    rows : sequence of sequence of str
        The same number of cells in each row.
    words : int
        Number of columns at the left with words, which are aligned left; numbers in the others are aligned right.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        GAP.join(
            cell.ljust(width) if i < words else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]


def _row(recent: Recent, snapshot: Snapshot, participant: Participant) -> _Row:
    progress = snapshot.progress[participant.rank]
    state = _state_of(recent, snapshot, participant)
    gone = participant.phase.gone
    cells = [
        f"{participant.rank} {participant.device}".strip(),
        state,
        _epoch(progress),
        "-" if gone else _number(recent.rate(participant.rank), ".1f"),
        _number(progress.loss, ".4g"),
        "-" if gone else _number(recent.sync_share(participant.rank), ".1%"),
    ]
    return _Row(participant.rank, state, cells)


def _state_of(recent: Recent, snapshot: Snapshot, participant: Participant) -> str:
    """Return the state of a worker in a word.

    Before a worker joins, its script is being imported; after the workers have met, and before the first step, models
    are being compiled.
    """
    phase, progress = participant.phase, snapshot.progress[participant.rank]
    if phase.left:
        return "lost" if participant.rank in snapshot.failing else "finished"
    if phase is Phase.LOST:
        failed = any(ended.rank == participant.rank for ended in snapshot.failed)
        return "interrupted" if snapshot.interrupted and not failed else "lost"
    if not phase.present:
        return "importing"
    if recent.waiting(participant.rank):
        return "waiting"
    stalled_s = recent.stalled_s(participant.rank)
    if stalled_s:
        return f"{_STALLED} {duration(stalled_s)}"
    if progress.started or progress.exchanges:  # a user's own loop may report no steps
        return "training"
    return "compiling" if progress.bound or phase.shares else "joined"


def _epoch(progress: Progress) -> str:
    return f"{progress.epoch}/{progress.last_epoch}" if progress.last_epoch else str(progress.epoch)


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _states(states: Iterable[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(states).items())


def _first_below(recent: Recent, snapshot: Snapshot, width: int) -> list[str]:
    """Draw the line about the whole job."""
    first = [f"stopping: {snapshot.stop_reason}"] if snapshot.stop_reason else []
    total = f"total {_number(recent.total_rate(), '.1f')} batches/s"
    return _wrapped([*first, total, duration(snapshot.seconds), *_limits(recent, snapshot)], width)


def _values_below(snapshot: Snapshot, width: int, most: int) -> list[str]:
    """Draw the reported values in at most ``most`` lines."""
    values = _values(snapshot)
    shown = _wrapped(values, width)
    if len(shown) > most:
        kept = shown[: most - 1]
        shown = [*kept, f"and {len(values) - sum(line.count(GAP) + 1 for line in kept)} more values"]
    return shown


def _limits(recent: Recent, snapshot: Snapshot) -> list[str]:
    """Return the known limits of the training and the remaining time."""
    found = []
    here = [snapshot.progress[each.rank] for each in snapshot.participants if not each.phase.gone]
    steps = [each for each in here if each.last_step]
    if steps:
        slowest = min(steps, key=lambda each: each.steps)
        found.append(f"batch {slowest.steps}/{slowest.last_step}")
    found += sorted({each.limit for each in here if each.limit})[:1]
    left = recent.seconds_left()
    if not (math.isnan(left) or snapshot.stop_reason):
        found.append(f"about {duration(left)} left")
    return found


def _values(snapshot: Snapshot) -> list[str]:
    shown = [f"CHECKPOINTS MISSED {snapshot.missed_checkpoints}"] if snapshot.missed_checkpoints else []
    for name, value in snapshot.reported.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        text = textwrap.shorten(text, _VALUE_CHARACTERS, placeholder="...")
        shown.append(f"{name} {text}")
    return shown


def _wrapped(items: Iterable[str], width: int) -> list[str]:
    """Fill lines with items; break an item, between words, only if it is longer than a line."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(GAP) + len(item) <= width:
            lines[-1] += GAP + item
        else:
            lines += textwrap.wrap(item, width)
    return lines


def workers_line(recent: Recent) -> str:
    """Return the workers' states, such as ``"3 training, 1 compiling"``; lost and stalled workers are named."""
    snapshot = recent.snapshot
    if snapshot is None:
        return ""
    states = []
    for each in snapshot.participants:
        state = _state_of(recent, snapshot, each)
        named = state == "lost" or state.startswith(_STALLED)
        states.append(f"worker {each.rank} {state}" if named else state)
    counts = Counter(states)
    return ", ".join(state if state.startswith("worker ") else f"{count} {state}" for state, count in counts.items())


def plain_line(recent: Recent) -> tuple[tuple[str, ...], str]:
    """Return the latest snapshot as one short line, and a key that changes with it.

    Returns
    -------
    key : tuple of str
        Changes with the workers' states, the epoch, the names of reported values and the reason of a stop; every minute
        while a worker is stalled.
    line : str
    """
    snapshot = recent.snapshot
    if snapshot is None:
        return (), ""
    here = [snapshot.progress[each.rank] for each in snapshot.participants if not each.phase.gone]
    workers, values = workers_line(recent), _values(snapshot)
    epoch = _epoch(min(here, key=lambda each: each.epoch)) if here else ""
    losses = [each.loss for each in here if not math.isnan(each.loss)]
    stop = [f"stopping: {snapshot.stop_reason}"] if snapshot.stop_reason else []
    items = [*stop, workers]
    if any(each.started for each in here):
        items.append(f"epoch {epoch}")
        rate = recent.total_rate()
        items += [] if math.isnan(rate) else [f"{rate:.1f} batches/s"]
        items += [f"loss {sum(losses) / len(losses):.4g}"] if losses and "loss" not in snapshot.reported else []
        items += _limits(recent, snapshot)
    lines = _wrapped([*items, *values], _LINE_CHARACTERS)
    more = f"{GAP}..." if len(lines) > 1 else ""
    stalled = [recent.stalled_s(each.rank) for each in snapshot.participants if not each.phase.gone]
    if any(stalled):
        minutes = [str(seconds // 60) if seconds else "" for seconds in stalled]
        workers = " ".join([_states(str(each.phase) for each in snapshot.participants), *minutes])
    return (workers, epoch, *stop, *values), lines[0] + more


def duration(seconds: float) -> str:
    """Format a duration to about two digits: ``"50 s"``, ``"12 min"``, ``"3 h 20 min"``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def cut(text: str, characters: int) -> str:
    """Return a text, shortened to at most ``characters``."""
    return text if len(text) <= characters else f"{text[:characters]}..."
