"""Rows of a job's state on other hosts, copied from one host's memory to another's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.shm.job_state import ROW, JobState

__all__ = ["MIRRORED", "as_words", "copied_rows", "put_rows"]

# Last fields of a row: large, or of one host.
_OWN_HOST = ("ending", "phase_counts", "turn_clock", "round")
_TIMES = ("started", "updated", "waited_at")  # By the monotonic clock of the worker's host.
# Part of a row visible to other hosts, and the worker's vote.
MIRRORED = np.dtype([("row", [(name, ROW[name]) for name in ROW.names or () if name not in _OWN_HOST]), ("vote", "i8")])
# The first words of a row, copied together.
_MIRRORED_WORDS = MIRRORED["row"].itemsize // 8


def as_words(rows: Any) -> Any:
    """View rows as an array of int64 with a line for each."""
    return rows.view("i8").reshape(len(rows), rows.dtype.itemsize // 8)


def copied_rows(job_state: JobState, ranks: Sequence[int]) -> Any:
    """Copy the part of these ranks' rows that is visible to other hosts, as `MIRRORED`."""
    found = np.empty(len(ranks), MIRRORED)
    at = np.asarray(ranks, "i8")
    as_words(found)[:, :_MIRRORED_WORDS] = as_words(job_state.table)[at, :_MIRRORED_WORDS]
    found["vote"] = job_state.stop_votes[at]
    return found


def put_rows(job_state: JobState, ranks: Sequence[int], rows: Any, shift_s: float) -> None:
    """Write rows of another host, whose monotonic clock is ``shift_s`` behind this one's."""
    at, new = np.asarray(ranks, "i8"), rows.copy()
    for name in _TIMES:
        times = new["row"][name]
        np.add(times, shift_s, out=times, where=times != 0)
    table = job_state.table
    for rank in at[table["lives"][at] != new["row"]["lives"]]:
        table[rank]["ending"] = b""  # It belongs to an earlier process of this rank.
    as_words(table)[at, :_MIRRORED_WORDS] = as_words(new)[:, :_MIRRORED_WORDS]
    job_state.stop_votes[at] = new["vote"]
