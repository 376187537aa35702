"""Find out that a collective queued on a device will never complete, from the counts of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, PlatoonError, WorkerLostError
from platoon_base.shm.calls import Call
from platoon_base.shm.liveness import Liveness
from platoon_base.shm.movement import standstill

__all__ = ["Fault", "find_fault", "ranks_behind"]

SETTLED_S = 10.0  # after so long a call that all ranks have begun counts as completed


class Fault(NamedTuple):
    """Why the group is lost.

    Attributes
    ----------
    error : PlatoonError
    interrupt : bool
        Whether somebody may be waiting for a result that is worthless now.
    """

    error: PlatoonError
    interrupt: bool


def ranks_behind(mine: Call, others: Sequence[int], liveness: Liveness) -> list[int]:
    """List the other ranks that have not made a rank's latest call yet."""
    return [rank for rank in others if liveness.latest_call(rank).number < mine.number]


def find_fault(mine: Call, others: Sequence[int], liveness: Liveness, now: float) -> Fault | None:
    """Tell what keeps a rank's latest call from completing, if anything does.

    Parameters
    ----------
    mine : Call
    others : sequence of int
        The other ranks of the group.
    liveness : Liveness
    now : float
        Seconds of the monotonic clock.
    """
    if not mine.number:
        return None
    calls = {rank: liveness.latest_call(rank) for rank in others}
    strangers = [r for r, call in calls.items() if call.number == mine.number and call.signature != mine.signature]
    if strangers:
        text = (
            f"call number {mine.number} on this device differs from that of rank {strangers[0]}: all ranks must make "
            "the same calls, with arrays of the same shapes and dtypes, in the same order"
        )
        return Fault(ConfigurationError(text), interrupt=True)
    behind = ranks_behind(mine, others, liveness)
    dead = [rank for rank in others if liveness.died(rank)]
    why = liveness.why_absent(behind or dead) if behind or dead else ""
    if why:
        text = f"collective number {mine.number} on this device cannot complete: {why}"
        # A rank that died after it had begun the call may have completed it: only a recent one may be waited for.
        return Fault(WorkerLostError(text), interrupt=bool(behind) or now - mine.begun < SETTLED_S)
    if behind and now > mine.deadline and now > liveness.moved(behind) + mine.deadline - mine.begun:
        who = ", ".join(f"rank {rank} ({standstill(liveness.moved([rank]))})" for rank in behind)
        text = f"waited for {who} in collective number {mine.number} on this device: look into "
        text += "their logs, or give a longer timeout_s (PLATOON_TIMEOUT_S sets it for all waits)"
        return Fault(CollectiveTimeoutError(text), interrupt=True)
    return None
