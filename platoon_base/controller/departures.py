"""Consequences of the end of one worker: the others go on or not, and one of them leads."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from platoon_base.controller.outcome import Snapshot
from platoon_base.controller.processes import Exit
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.phase import Phase
from platoon_base.shm.job_state import Progress
from platoon_base.worker_process.failure import INTERRUPTED

__all__ = ["fatal", "leader_of", "lost_leader", "shared_nothing"]


def leader_of(snapshot: Snapshot) -> int:
    """Return the lowest rank that is not lost; 0 if all are."""
    launched = [each for each in snapshot.participants if each.launched]
    return min((each.rank for each in launched if each.phase is not Phase.LOST), default=0)


def fatal(ended: Exit, progress: Progress, fail_fast: str) -> str:
    """Say why the others are not to go on after the end of a worker; empty if they are.

    Parameters
    ----------
    ended : Exit
    progress : Progress
        Of that worker.
    fail_fast : {"never", "early", "always"}
        See `JobOptions`.
    """
    failure = ended.failure
    if not ended.status or fail_fast == "never" or (failure is not None and failure.follows):
        return ""
    if fail_fast == "always":
        return f"worker {ended.rank} failed ({ended}): the job ends, as --fail-fast asks"
    # A script that counts no steps may be in the midst of its work: it has met others, and no adapter has said so.
    counts = progress.bound or not progress.waits
    began = progress.steps > progress.steps_before_start or progress.exchanges or not counts
    if began or failure is None or failure.kind == INTERRUPTED:
        return ""
    return (
        f"worker {ended.rank} failed before its first step ({failure.kind}): the job ends, since the others would "
        "train without its part of the data; --allow-failures lets them go on"
    )


def lost_leader(exits: Sequence[Exit], steps: int, led: Sequence[int]) -> str:
    """Say what did not happen because rank 0 has failed, while others went on to their end; empty if that is not so.

    Parameters
    ----------
    exits : sequence of Exit
    steps : int
        Those that rank 0 had made.
    led : sequence of int
        The ranks that have taken its role over.
    """
    ended_well = [ended.rank for ended in exits if ended.status == 0]
    if not ended_well or not any(ended.rank == 0 and ended.status for ended in exits):
        return ""
    leader = min((rank for rank in led if rank in ended_well), default=0)
    text = f"worker 0 failed after {steps} mini-batches, and the others went on"
    if leader:
        text += (
            f". Worker {leader} was the leader from then on: it ran the callbacks or extensions of the leader, and "
            "what the script does if worker.is_leader"
        )
    return (
        f"{text}. What the script does on rank 0 alone (if worker.global_rank == 0), such as saving the model, did not "
        f"happen{'' if leader else ': if it asks worker.is_leader instead, another worker does it'}"
    )


def shared_nothing(exits: Sequence[Exit], adopted: Collection[int], coordinator: Coordinator) -> tuple[int, ...]:
    """Name the launched workers of several that did their work, and did it alone."""
    if coordinator.roster.size < 2:
        return ()
    ended_well = {ended.rank for ended in exits if ended.status == 0}
    return tuple(sorted(ended_well - set(adopted) - coordinator.cooperated))
