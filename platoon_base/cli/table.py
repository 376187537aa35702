"""The texts that show a running job: a table for terminals, a line for pipes."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from platoon_base.cli.recent import TREND_POINTS, Recent, is_validation, sparkline
from platoon_base.controller.outcome import Snapshot
from platoon_base.coordination.roster import Participant, Phase
from platoon_base.shm.job_state import Progress

GAP, _BETWEEN = "  ", " |  "
_VALUE_CHARACTERS, _MOST_VALUE_LINES, _LINE_CHARACTERS = 60, 4, 120
_WORDS = 2  # Number of columns.
_STALLED = "no step for"
_LOWEST_FULL = 9  # A title and a bar need at least this many rows.
_BAR_CHARACTERS, _SHORTEST_BAR, _TRACK_CHARACTERS, _SHORT_TRACK_CHARACTERS = 40, 5, 20, 8


class Line(NamedTuple):
    """A line of the table; ``kind`` is title, bar, heading, workers, total or values."""

    kind: str
    text: str


class _Row(NamedTuple):
    rank: int
    state: str
    rate: float  # NaN if the worker has left, or the rate is not known.
    cells: list[str]


class _Column(NamedTuple):
    """A column of the table; narrow terminals drop those with ``lost`` > 0, the least first."""

    heading: str
    lost: int
    cell: Callable[[Recent, Snapshot, Participant, bool], str]  # ``bool``: draw with ASCII only


_COLUMNS = (
    _Column("worker", 0, lambda recent, now, each, plain: f"{each.rank} {each.device}".strip()),
    _Column("state", 0, lambda recent, now, each, plain: _state_of(recent, now, each)),
    _Column("epoch", 5, lambda recent, now, each, plain: _epoch(now.progress[each.rank])),
    _Column("batches/s", 0, lambda recent, now, each, plain: _number(_rate(recent, each), ".1f")),
    _Column("", 2, lambda recent, now, each, plain: _trend(recent, each, plain)),
    _Column("loss", 4, lambda recent, now, each, plain: _number(now.progress[each.rank].loss, ".4g")),
    _Column("in sync", 3, lambda recent, now, each, plain: _in_sync(recent, each)),
    _Column("last step", 1, lambda recent, now, each, plain: _last_step(recent, each)),
)


def table(recent: Recent, width: int, height: int, title: str = "", plain: bool = False) -> list[str]:
    return [line.text for line in draw(recent, width, height, title, plain)]


def draw(recent: Recent, width: int, height: int, title: str = "", plain: bool = False) -> list[Line]:
    """Draw the latest snapshot in at most ``height`` lines of at most ``width`` columns."""
    snapshot = recent.snapshot
    full = height >= _LOWEST_FULL
    above, first = _head(recent, snapshot, width, title, plain) if full else ([], _total(recent, snapshot, width))
    spare = height - 1 - len(above) - len(snapshot.participants) - len(first)
    values = _values_below(recent, snapshot, width, min(max(spare, 2), _MOST_VALUE_LINES), plain)
    below = [*first, *(Line("values", text) for text in values)][: max(1, height - 2 - len(above))]
    # Many workers get several columns; if these are too wide, the last line sums up the rest.
    room = max(1, height - 1 - len(above) - len(below))
    rows = [_row(recent, snapshot, participant, plain) for participant in snapshot.participants]
    heading, *workers = _workers(rows, width, room)
    lines = [*above, Line("heading", heading), *(Line("workers", text) for text in workers), *below]
    return [Line(kind, text[:width].rstrip()) for kind, text in lines]


def _head(recent: Recent, snapshot: Snapshot, width: int, title: str, plain: bool) -> tuple[list[Line], list[Line]]:
    """Draw the lines about the job: those above the workers, and the reason of a stop."""
    rate = recent.total_rate()
    rest = [_team(snapshot), *([] if math.isnan(rate) else [f"{rate:.1f} batches/s"]), duration(snapshot.seconds)]
    room = width - sum(len(each) + len(GAP) for each in rest)
    name = title if len(title) <= room else f"{title[: max(0, room - 3)]}..."
    lines = [Line("title", GAP.join([*([name] if len(name) > 3 else []), *rest]))]
    bar = _bar(recent, snapshot, width, plain)
    lines += [Line("bar", bar)] if bar else []
    return lines, [Line("total", text) for text in _wrapped(_stop(snapshot), width)]


def _team(snapshot: Snapshot) -> str:
    here = snapshot.here or snapshot.participants
    kinds = Counter(each.device.rstrip("0123456789") or "cpu" for each in here)
    devices = " and ".join(f"{count} on {kind}" if len(kinds) > 1 else kind for kind, count in kinds.items())
    workers = f"{len(here)} worker{'s' * (len(here) != 1)}"
    return f"{workers}: {devices}" if len(kinds) > 1 else f"{workers} on {devices}"


def _bar(recent: Recent, snapshot: Snapshot, width: int, plain: bool) -> str:
    """Draw the progress, the remaining time and other limits; empty if none is known."""
    share = recent.share_done()
    words = [] if math.isnan(share) else [f"{int(100 * share):3} %"]
    words += _limits(recent, snapshot)
    while len(words) > 1 and len(GAP.join(words)) + len(GAP) + _SHORTEST_BAR > width:
        words.pop()
    text = GAP.join(words)
    if math.isnan(share):
        return text
    room = max(0, min(_BAR_CHARACTERS, width - len(GAP) - len(text)))
    full = int(share * room)
    done, rest = "#-" if plain else "█░"
    return f"{done * full}{rest * (room - full)}{GAP}{text}"


def _workers(rows: Sequence[_Row], width: int, room: int) -> list[str]:
    """Draw the heading and at most ``room`` lines for the workers."""
    columns = -(-len(rows) // room)
    kept = _fitting(rows, columns, width)
    if kept or columns == 1:
        return _columns(rows, columns, kept or _kept(rows)[-1])
    kept = _fitting(rows, 1, width) or _kept(rows)[-1]
    columns = max(1, width // (_width(rows, 1, kept) + len(_BETWEEN)))
    odd = sorted(rows, key=lambda row: row.state == "training")
    shown = odd[: max(0, columns * (room - 1))]
    rest = odd[len(shown) :]
    last = f"and {len(rest)} more: {_states(row.state for row in rest)}"
    rates = [row.rate for row in rest if not math.isnan(row.rate)]
    if rates and len(with_rates := f"{last}, {min(rates):.1f} to {max(rates):.1f} batches/s") <= width:
        last = with_rates
    return [*_columns(sorted(shown), columns, kept), last]


def _kept(rows: Sequence[_Row]) -> list[list[int]]:
    """Return the numbers of the cells that may be shown together, from all to the fewest."""
    # A column without a heading is shown if it has something to show.
    shown = [i for i, column in enumerate(_COLUMNS) if column.heading or any(row.cells[i] for row in rows)]
    steps = sorted({column.lost for column in _COLUMNS})
    return [[i for i in shown if not 0 < _COLUMNS[i].lost <= lost] for lost in steps]


def _fitting(rows: Sequence[_Row], columns: int, width: int) -> list[int]:
    """Return the most cells that fit into the width in ``columns`` columns, or []."""
    return next((kept for kept in _kept(rows) if _width(rows, columns, kept) <= width), [])


def _width(rows: Sequence[_Row], columns: int, kept: Sequence[int]) -> int:
    count = max(1, -(-len(rows) // columns))
    blocks = [rows[i : i + count] for i in range(0, max(1, len(rows)), count)]
    cells = sum(max(len(_COLUMNS[i].heading), *(len(row.cells[i]) for row in block)) for block in blocks for i in kept)
    return cells + len(blocks) * len(GAP) * (len(kept) - 1) + (len(blocks) - 1) * len(_BETWEEN)


def _columns(rows: Sequence[_Row], columns: int, kept: Sequence[int]) -> list[str]:
    """Lay out the cells with the numbers ``kept`` in several columns."""
    count, headings = max(1, -(-len(rows) // columns)), [column.heading for column in _COLUMNS]
    heading, *cells = [[cells[i] for i in kept] for cells in (headings, *(row.cells for row in rows))]
    blocks = [aligned([heading, *cells[i : i + count]], _WORDS) for i in range(0, max(1, len(rows)), count)]
    return [_BETWEEN.join(parts) for parts in zip(*(block + [""] * (count + 1 - len(block)) for block in blocks))]


def aligned(rows: Sequence[Sequence[str]], words: int) -> list[str]:
    """Lay out cells in columns, the first ``words`` left-aligned; `rich.table` is much slower."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        GAP.join(
            cell.ljust(width) if i < words else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]


def _row(recent: Recent, snapshot: Snapshot, each: Participant, plain: bool) -> _Row:
    cells = [column.cell(recent, snapshot, each, plain) for column in _COLUMNS]
    return _Row(each.rank, cells[1], _rate(recent, each), cells)


def _rate(recent: Recent, each: Participant) -> float:
    return math.nan if each.phase.gone else recent.rate(each.rank)


def _trend(recent: Recent, each: Participant, plain: bool) -> str:
    rates = [] if each.phase.gone else recent.trend(each.rank)
    return sparkline(rates, TREND_POINTS, 0.0, plain).rjust(TREND_POINTS) if len(rates) > 1 else ""


def _in_sync(recent: Recent, each: Participant) -> str:
    return "-" if each.phase.gone else _number(recent.sync_share(each.rank), ".1%")


def _last_step(recent: Recent, each: Participant) -> str:
    ago = math.nan if each.phase.gone else recent.idle_s(each.rank)
    return "-" if math.isnan(ago) else duration(ago)


def _state_of(recent: Recent, snapshot: Snapshot, participant: Participant) -> str:
    phase, progress = participant.phase, snapshot.progress[participant.rank]
    if phase.left:
        if participant.rank in snapshot.failing:
            return "lost"
        return "interrupted" if snapshot.interrupted and not participant.ended else "finished"
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
    if progress.started or progress.exchanges:  # A user's own loop may report no steps.
        return "training"
    return "compiling" if progress.bound == 1 or (phase.shares and not progress.bound) else "joined"


def _epoch(progress: Progress) -> str:
    if not progress.epoch and progress.steps:  # The epoch is not reported, since epochs start at 1.
        return "-"
    return f"{progress.epoch}/{progress.last_epoch}" if progress.last_epoch else str(progress.epoch)


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _states(states: Iterable[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(states).items())


def _total(recent: Recent, snapshot: Snapshot, width: int) -> list[Line]:
    """Draw the lines about the whole job for a terminal that is too low for a title and a bar."""
    total = f"total {_number(recent.total_rate(), '.1f')} batches/s"
    items = [*_stop(snapshot), total, duration(snapshot.seconds), *reversed(_limits(recent, snapshot))]
    return [Line("total", text) for text in _wrapped(items, width)]


def _stop(snapshot: Snapshot) -> list[str]:
    return [f"stopping: {snapshot.stop_reason}"] if snapshot.stop_reason else []


def _values_below(recent: Recent, snapshot: Snapshot, width: int, most: int, plain: bool) -> list[str]:
    """Draw the loss and the validation values with their history, then the other values."""
    tracks = _tracks(recent, snapshot, plain)
    others = {name: value for name, value in snapshot.reported.items() if name not in tracks}
    values = _values(snapshot._replace(reported=others))
    lines = (
        aligned([[*each[:2], each[2].ljust(_TRACK_CHARACTERS), each[3]] for each in tracks.values()], 4)
        if tracks
        else []
    )
    if lines and (len(lines) > most - bool(values) or max(map(len, lines)) > width):
        lines = []
        short = _tracks(recent, snapshot, plain, _SHORT_TRACK_CHARACTERS).values()
        values = [*(_first_within(width, each) for each in short), *values]
    wrapped = _wrapped(values, width)
    if len(lines) + len(wrapped) > most:
        wrapped = wrapped[: most - len(lines) - 1]
        wrapped.append(f"and {len(values) - sum(line.count(GAP) + 1 for line in wrapped)} more values")
    return [*lines, *wrapped]


def _first_within(width: int, words: Sequence[str]) -> str:
    """Return as many of the words as fit into the width, at least two."""
    words = [word for word in words if word]
    while len(words) > 2 and len(" ".join(words)) > width:
        words.pop()
    return " ".join(words)


def _tracks(recent: Recent, snapshot: Snapshot, plain: bool, size: int = _TRACK_CHARACTERS) -> dict[str, list[str]]:
    """Return name, value, sparkline and best value of each value with a history."""
    found = {}
    losses = recent.loss.values
    if (
        len(losses) > 1
        and snapshot.reported
        and ("loss" not in recent.tracks or len(recent.tracks["loss"].course.values) < 2)
    ):
        found["loss"] = ["loss", f"{losses[-1]:.4g}", sparkline(losses, size, None, plain), ""]
    for name in sorted(recent.tracks, key=lambda name: name != "loss"):
        track, value = recent.tracks[name], snapshot.reported.get(name)
        shown = name == "loss" or (is_validation(name) and len(name) <= _TRACK_CHARACTERS)
        if len(track.course.values) < 2 or isinstance(value, str) or not shown:
            continue
        best = "" if math.isnan(track.best) or name == "loss" else f"best {track.best:.4g}"
        best += f" in epoch {track.best_epoch}" if best and track.best_epoch else ""
        if best or value is not None:
            latest = "" if value is None else f"{value:.4g}"
            found[name] = [name, latest, sparkline(track.course.values, size, None, plain), best]
    return found


def _limits(recent: Recent, snapshot: Snapshot) -> list[str]:
    seconds = recent.seconds_left()
    found = [] if math.isnan(seconds) or snapshot.stop_reason else [f"about {duration(seconds)} left"]
    here = [snapshot.progress[each.rank] for each in snapshot.here]
    steps = [each for each in here if each.last_step]
    if steps:
        slowest = min(steps, key=lambda each: each.steps)
        found.append(f"batch {slowest.steps}/{slowest.last_step}")
    found += sorted({each.limit for each in here if each.limit})[:1]
    return found


_AT_THE_END = ("trained", "saved")  # Values that only the final table shows.


def _values(snapshot: Snapshot) -> list[str]:
    shown = [f"CHECKPOINTS MISSED {snapshot.missed_checkpoints}"] if snapshot.missed_checkpoints else []
    for name, value in snapshot.reported.items():
        if name in _AT_THE_END:
            continue
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        text = textwrap.shorten(text, _VALUE_CHARACTERS, placeholder="...")
        shown.append(f"{name} {text}")
    return shown


def _wrapped(items: Iterable[str], width: int) -> list[str]:
    """Fill lines with items; break only items longer than a line."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(GAP) + len(item) <= width:
            lines[-1] += GAP + item
        else:
            lines += textwrap.wrap(item, width)
    return lines


def workers_line(recent: Recent) -> str:
    """Return the states, as ``"3 training, 1 compiling"``; names lost and stalled workers."""
    states = []
    for each in recent.snapshot.participants:
        state = _state_of(recent, recent.snapshot, each)
        named = state == "lost" or state.startswith(_STALLED)
        states.append(f"worker {each.rank} {state}" if named else state)
    counts = Counter(states)
    return ", ".join(state if state.startswith("worker ") else f"{count} {state}" for state, count in counts.items())


def plain_line(recent: Recent) -> tuple[tuple[str, ...], str]:
    """Return a key that changes when a line is due, and the latest snapshot as one short line."""
    snapshot = recent.snapshot
    here = [snapshot.progress[each.rank] for each in snapshot.here]
    workers, values = workers_line(recent), _values(snapshot)
    epoch = _epoch(min(here, key=lambda each: each.epoch)) if here else ""
    losses = [each.loss for each in here if not math.isnan(each.loss)]
    stop = [f"stopping: {snapshot.stop_reason}"] if snapshot.stop_reason else []
    items = [*stop, workers]
    if any(each.started for each in here):
        items += [f"epoch {epoch}"] if epoch != "-" else [f"{min(each.steps for each in here)} batches"]
        rate = recent.total_rate()
        items += [] if math.isnan(rate) else [f"{rate:.1f} batches/s"]
        items += [f"loss {sum(losses) / len(losses):.4g}"] if losses and "loss" not in snapshot.reported else []
        items += reversed(_limits(recent, snapshot))
    lines = _wrapped([*items, *values], _LINE_CHARACTERS)
    more = f"{GAP}..." if len(lines) > 1 else ""
    stalled = [recent.stalled_s(each.rank) for each in snapshot.here]
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
    return text if len(text) <= characters else f"{text[:characters]}..."
