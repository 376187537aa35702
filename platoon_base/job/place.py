"""The place of this process in its job: `rank`, `world_size`, `is_main`."""

from __future__ import annotations

from platoon_base.job.joining import connect

__all__ = ["is_main", "rank", "world_size"]


def rank() -> int:
    """Return this worker's rank in its job, from 0, over all hosts: ``connect().global_rank``."""
    return connect().global_rank


def world_size() -> int:
    """Return the number of launched workers on all hosts; 1 under plain ``python``."""
    return connect().global_size


def is_main() -> bool:
    """Return whether this worker saves and prints for all: ``connect().is_leader``.

    It is rank 0, or the lowest remaining rank if rank 0 fails: call it each time.

    Examples
    --------
    >>> if is_main():                                                               # doctest: +SKIP
    ...     model.save("model.keras")
    """
    return connect().is_leader
