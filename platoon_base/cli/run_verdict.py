"""The verdict on a job in words: its end, the time of its workers, stragglers, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from platoon_base.cli.failures import name_workers
from platoon_base.cli.run_recorder import Lane, Shares
from platoon_base.cli.stragglers import Straggler, find_straggler, percent
from platoon_base.cli.table import duration
from platoon_base.controller.outcome import Result
from platoon_base.coordination.story import Entry
from platoon_base.shm.phases import COMPUTE, LOADING, SYNC

__all__ = ["Sentence", "straggler_of", "verdict"]

_NOTABLE, _HIGH = 0.1, 0.25  # of a worker's time
_LEAST_STEPS = 3
_PHRASES = {
    "synchronization": "synchronization",
    "waiting": "waiting for other workers",
    "loading": "waiting for batches",
    "validation": "validation",
}
_ADVICE = {
    "synchronization": "Synchronize less often (a larger every_n_batches, or a rule that makes "
    "several local steps), or use larger batches",
    "waiting": "Find the cause of the slow worker, below. If no worker is slow, the batches of "
    "one step take unequal times: use a rule that does not wait (CenterMomentum, "
    "EASGD)",
    "loading": "Load ahead (platoon_base.data.load_ahead, or more processes of the loader), or read from a faster disk",
    "validation": "Validate less often, on fewer batches, or on all workers (each on its shard)",
}


class Sentence(NamedTuple):
    """A sentence of the verdict; ``level`` is "good", "note" or "bad"."""

    level: str
    text: str


def verdict(lanes: Mapping[int, Lane], result: Result | None, story: Sequence[Entry]) -> list[Sentence]:
    """Return how a job went, the most important first.

    Parameters
    ----------
    lanes : mapping of int to Lane
    result : Result or None
        None if the job could not be run to its end.
    story : sequence of Entry
    """
    timed = {rank: lane for rank, lane in lanes.items() if lane.shares.total > 0}
    found = [_outcome(result), *_of_time(timed)]
    straggler = straggler_of(timed)
    if straggler is not None:
        found.append(Sentence("bad", f"{straggler.line[0].upper()}{straggler.line[1:]}."))
    elif len(timed) > 1:
        found.append(Sentence("good", "No worker is slower than the others."))
    return [*found, *_of_losses(result, story)]


def _outcome(result: Result | None) -> Sentence:
    if result is None:
        return Sentence("bad", "The job did not run to its end: see the output of the launcher.")
    after = f"after {duration(result.seconds)}: {result.stopped_by}"
    if result.interrupted:
        return Sentence("note", f"The job was stopped {after}.")
    if result.status:
        return Sentence("bad", f"The job ended with status {result.status} {after}.")
    return Sentence("good", f"The job succeeded {after}.")


def _of_time(lanes: Mapping[int, Lane]) -> list[Sentence]:
    """Return sentences about the phases in which workers do not compute."""
    if not lanes:
        return [Sentence("note", "No worker has counted steps (Worker.progress), so the use of its time is unknown.")]
    total = Shares()
    for lane in lanes.values():
        total = total.plus(lane.shares)
    unknown = not any(lane.has_loading for lane in lanes.values())
    with_loading = " (including loading, which the loop does not measure)" if unknown else ""
    computing = f"The workers computed for {percent(total.compute / total.total)} of their time{with_loading}"
    found = []
    for name, phrase in _PHRASES.items():
        worst = max(lanes.values(), key=lambda lane: getattr(lane.shares, name) / lane.shares.total)
        share = getattr(worst.shares, name) / worst.shares.total
        if share >= _NOTABLE:
            high = share >= _HIGH
            mean = f", and {percent(getattr(total, name) / total.total)} of all workers'" if len(lanes) > 1 else ""
            advised = f". {_ADVICE[name]}" if high else ""
            text = f"{percent(share)} of rank {worst.rank}'s time is {phrase}{mean}{advised}."
            found.append((share, Sentence("bad" if high else "note", text)))
    found.sort(key=lambda each: -each[0])
    rest = "" if found else "; every other phase takes less than a tenth of each worker's time"
    level = "note" if found else "good"
    return [*(sentence for _, sentence in found), Sentence(level, f"{computing}{rest}.")]


def straggler_of(lanes: Mapping[int, Lane]) -> Straggler | None:
    """Return the worker that was slower than the others over the whole job, if there is one."""
    made = {rank: lane for rank, lane in lanes.items() if lane.steps > _LEAST_STEPS}
    per_step, waiting = {}, {}
    for rank, lane in made.items():
        seconds = [0.0] * 6
        seconds[COMPUTE], seconds[LOADING] = lane.shares.compute, lane.shares.loading
        seconds[SYNC] = 0.0 if lane.calls_collectives else lane.shares.synchronization
        per_step[rank] = tuple(each / lane.steps for each in seconds)
        waiting[rank] = lane.shares.waiting / lane.shares.total
    return find_straggler(per_step, {rank: lane.has_loading for rank, lane in made.items()}, waiting)


def _of_losses(result: Result | None, story: Sequence[Entry]) -> list[Sentence]:
    """Return sentences about workers and hosts that were lost, restarts and checkpoints."""
    found = []
    lost: dict[str, list[int]] = {}
    for entry in story:
        if entry.who == "rank" and entry.after == "lost":
            lost.setdefault(entry.why, []).extend(entry.numbers)
    for why, ranks in lost.items():
        found.append(
            Sentence("bad", f"{name_workers(sorted(set(ranks))).capitalize()} failed: {why or 'unknown why'}.")
        )
    hosts = sorted({host for entry in story if (entry.who, entry.after) == ("host", "lost") for host in entry.numbers})
    if hosts:
        found.append(Sentence("bad", f"Host{'s' * (len(hosts) > 1)} {', '.join(map(str, hosts))} lost."))
    if result is not None and result.restarts:
        found.append(Sentence("note", f"{result.restarts} restart{'s' * (result.restarts > 1)}."))
    if result is not None and result.checkpoints is not None and result.checkpoints.missed:
        found.append(Sentence("bad", f"{result.checkpoints.missed} checkpoints missed: {result.checkpoints.unsaved}."))
    return found
