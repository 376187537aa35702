"""Rows of a job's state on other hosts: what they see of a worker, copied from one host's memory to another's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.shm.job_state import ROW, JobState

__all__ = ["MIRRORED", "as_words", "copied_rows", "put_rows"]

_OWN_HOST = ("ending", "phase_counts", "turn_clock", "round")  # the last of a row: large, or of one host
_TIMES = ("started", "updated", "waited_at")  # by the monotonic clock of the worker's host
# What other hosts see of a row, with the worker's vote.
MIRRORED = np.dtype([("row", [(name, ROW[name]) for name in ROW.names or () if name not in _OWN_HOST]), ("vote", "i8")])
_MIRRORED_WORDS = MIRRORED["row"].itemsize // 8  # the beginning of a row, so that rows are copied in one go


def as_words(rows: Any) -> Any:
    """View rows, of a job's state or mirrored, as an array of int64 that has a line for each."""
    return rows.view("i8").reshape(len(rows), rows.dtype.itemsize // 8)


def copied_rows(job_state: JobState, ranks: Sequence[int]) -> Any:
    """Copy what other hosts see of the rows of these ranks: an array of `MIRRORED`."""
    found = np.empty(len(ranks), MIRRORED)
    at = np.asarray(ranks, "i8")
    as_words(found)[:, :_MIRRORED_WORDS] = as_words(job_state.table)[at, :_MIRRORED_WORDS]
    found["vote"] = job_state.stop_votes[at]
    return found


def put_rows(job_state: JobState, ranks: Sequence[int], rows: Any, shift_s: float) -> None:
    """Write what `copied_rows` has copied on another host, whose monotonic clock is ``shift_s`` behind this one's."""
    at, new = np.asarray(ranks, "i8"), rows.copy()
    for name in _TIMES:
        times = new["row"][name]
        np.add(times, shift_s, out=times, where=times != 0)
    table = job_state.table
    for rank in at[table["lives"][at] != new["row"]["lives"]]:
        table[rank]["ending"] = b""  # that of an earlier process of this rank
    as_words(table)[at, :_MIRRORED_WORDS] = as_words(new)[:, :_MIRRORED_WORDS]
    job_state.stop_votes[at] = new["vote"]
