"""The state of a running job in shared memory: the stop flag, votes to stop, and each worker's progress.

A worker reads the stop flag and writes its progress at the cost of a memory access, without messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.errors import ProtocolError
from platoon_base.sharding import START, Position
from platoon_base.shm.phases import BINS, PARTS, PHASES, PhaseTimes
from platoon_base.system.text import to_bytes
from platoon_base.views import array_on

__all__ = ["CONTROLLER_LOCK", "ROW", "TURN_LOCK", "USER_LOCK", "WORKER_LOCKS", "JobState", "Progress", "position_of"]

MAGIC = b"PLATOON\0"
VERSION = 14

# Bytes of the segment whose locks have a meaning; the bytes themselves are not touched by locking.
CONTROLLER_LOCK = 0  # held while the controller lives
USER_LOCK = 1  # Worker.lock() and unlock()
TURN_LOCK = 2  # held by the worker whose turn it is, and by the controller while it reads the center; see `shm.turns`
WORKER_LOCKS = 1024  # + rank: held while that worker takes part

_HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "u4"),
        ("rows", "u4"),
        ("stop", "u4"),
        ("several", "u4"),
        ("num_live", "u4"),
        ("num_live_everywhere", "u4"),
        ("leader", "u4"),
        ("reason", "S256"),
    ],
    align=True,
)
ROW = np.dtype(
    [
        ("epoch", "i8"),
        ("steps", "i8"),
        ("syncs", "i8"),
        ("copies", "i8"),
        ("loss", "f8"),
        ("sync_seconds", "f8"),
        ("started", "f8"),
        ("updated", "f8"),
        ("collectives", "i8"),
        ("waits", "i8"),
        ("left", "i8"),
        ("lives", "i8"),
        ("steps_before_epoch", "i8"),
        ("steps_before_start", "i8"),
        (
            "synced",
            "i8",
            (2, 3),
        ),  # positions: the latest and the one before, so that there is a whole one at any moment
        ("synced_slot", "i8"),
        ("epoch_steps", "i8"),
        ("last_epoch", "i8"),
        ("last_step", "i8"),
        ("bound", "i8"),
        ("waited_at", "f8"),
        ("led", "i8"),
        ("limit", "S48"),
        ("waiting_in", "S128"),
        ("phase_seconds", "f8", (len(PHASES),)),
        # Other hosts see what lies before these.
        ("ending", "S512"),
        ("phase_counts", "u4", (len(PARTS), BINS)),
        ("turn_clock", "i8"),  # see `turns`: one word, so that it is read whole
        ("round", "i8"),  # number of the latest round whose step this worker has made
    ],
    align=True,
)
_SIGNS = ("epoch", "steps", "syncs", "copies", "collectives", "waits", "lives")  # those that grow as a worker goes on
_VOTE_BYTES = 8


def position_of(row: Any) -> tuple[int, int, int]:
    """Return the epoch of a row's worker, its steps within it, and all its steps."""
    return int(row["epoch"]), int(row["steps"] - row["steps_before_epoch"]), int(row["steps"])


def _put(row: Any, position: Sequence[int]) -> None:
    """Write a position beside the latest one, and then make it the latest."""
    slot = 1 - row["synced_slot"]
    row["synced"][slot] = position
    row["synced_slot"] = slot


class Progress(NamedTuple):
    """The progress that one worker has written.

    Attributes
    ----------
    epoch, steps : int
    syncs : int
        Number of synchronizations with the center.
    loss : float
        NaN until the worker has reported one.
    sync_seconds : float
        Time spent in synchronization since ``started``.
    started, updated : float
        Seconds of the machine's monotonic clock: first and latest step.
    steps_before_start : int
        How many of the steps an earlier process of this rank has made.
    copies : int
        Number of copies from and to the center, without the one by which the parameters were shared.
    steps_before_epoch : int
        How many of the steps were made before this epoch.
    epoch_steps, last_epoch, last_step : int
        Steps of an epoch, and the numbers of the epoch and of the step that training ends with; 0 if not known.
    bound : int
        Whether the worker has met the others to train with them: 1, or 2 if it compiles nothing then.
    waits : int
        Begins and ends of collective calls: odd within one.
    waited_at : float
        The latest moment, by the monotonic clock, at which it waited for other workers in a collective call on arrays.
    limit : str
        Another limit of the training and how far it is, such as ``"patience 3/15"``.
    """

    epoch: int
    steps: int
    syncs: int
    loss: float
    sync_seconds: float
    started: float
    updated: float
    steps_before_start: int = 0
    copies: int = 0
    steps_before_epoch: int = 0
    epoch_steps: int = 0
    last_epoch: int = 0
    last_step: int = 0
    bound: int = 0
    waits: int = 0
    waited_at: float = 0.0
    limit: str = ""  # the last field: `progress` reads it as text

    @property
    def exchanges(self) -> int:
        """How often values went to or came from the center, by synchronizations and by copies."""
        return self.syncs + self.copies


class JobState:
    """The state of a job on any buffer: shared memory in a job of many, plain memory in a single-worker job.

    Attributes
    ----------
    table : ndarray, shape (rows,), of dtype `ROW`
        The rows of all ranks.
    stop_votes : ndarray, shape (rows,), int64
        The number of the round in which each rank has cast its latest vote; see `platoon_base.shm.stop_votes`.
    """

    def __init__(self, buffer: Any, rows: int, create: bool) -> None:
        self._header: Any = array_on(buffer, (), _HEADER)
        if create:
            self._header["magic"], self._header["version"], self._header["rows"] = MAGIC, VERSION, rows
        # NumPy strips trailing zeros of byte strings.
        elif (self._header["magic"].item(), self._header["version"].item()) != (MAGIC.rstrip(b"\0"), VERSION):
            raise ProtocolError("the job's state is of another version of this package; install one version everywhere")
        self._use_memory(buffer)
        if create:
            self.table["loss"] = np.nan

    def _use_memory(self, buffer: Any) -> None:
        self._header = array_on(buffer, (), _HEADER)
        self.table: Any = array_on(buffer, (int(self._header["rows"]),), ROW, self._first_row())
        # Not in the rows: one after the other, they are compared in a few cache lines, however many workers there are.
        self.stop_votes: Any = array_on(buffer, self.table.shape, "i8", self._first_row() + self.table.nbytes)
        self._stop = self._header["stop"][...]

    def detach(self) -> None:
        """Switch to a private copy, so that the memory can be unmapped; threads may still read the state."""
        copy = bytearray(self.size_bytes(len(self.table)))
        last = JobState(copy, len(self.table), create=True)
        last._header[...], last.table[...], last.stop_votes[...] = self._header, self.table, self.stop_votes
        self._use_memory(copy)

    @staticmethod
    def _first_row() -> int:
        return -(-_HEADER.itemsize // 64) * 64

    @classmethod
    def size_bytes(cls, rows: int) -> int:
        """Bytes that the state of so many workers takes."""
        return cls._first_row() + rows * (ROW.itemsize + _VOTE_BYTES)

    @property
    def stopping(self) -> bool:
        """Whether the job is to stop."""
        return bool(self._stop)

    @property
    def stop_reason(self) -> str:
        """Why the job stops; empty while it does not."""
        return bytes(self._header["reason"].item()).decode(errors="replace")

    def stop(self, reason: str) -> None:
        """Raise the stop flag. The first reason stays."""
        if not self.stopping:
            self._header["reason"] = to_bytes(reason, self._header.dtype["reason"].itemsize)
            self._header["stop"] = 1

    @property
    def shared_by_several(self) -> bool:
        """Whether several workers have shared parameters."""
        return bool(self._header["several"])

    def note_several(self) -> None:
        """Record that several workers share parameters, from now on."""
        self._header["several"] = 1

    @property
    def num_live(self) -> tuple[int, int]:
        """The workers that take part or are expected, without those that left or died: on this host, on all hosts."""
        header = self._header
        return max(1, int(header["num_live"])), max(1, int(header["num_live_everywhere"]))

    @num_live.setter
    def num_live(self, counts: tuple[int, int]) -> None:
        self._header["num_live"], self._header["num_live_everywhere"] = counts

    def signs(self) -> Any:
        """Return numbers that grow when a worker makes progress: an array of shape (signs, rows)."""
        return np.stack([self.table[name] for name in _SIGNS])

    @property
    def leader(self) -> int:
        """The rank of the leader: 0, or the lowest that is not lost."""
        return int(self._header["leader"])

    @leader.setter
    def leader(self, rank: int) -> None:
        self._header["leader"] = rank

    @property
    def rows(self) -> int:
        """How many ranks have a row."""
        return len(self.table)

    def row(self, rank: int) -> Any:
        """Return the row of a rank, to write to by field name."""
        return self.table[rank]

    def start_row(self, rank: int, position: Position = START) -> None:
        """Reset the row of a worker that joins, to go on at a position; `position` gives it from the start."""
        row = self.table[rank]
        _put(row, position)
        new = np.zeros((), dtype=ROW)
        new["loss"] = np.nan
        new["epoch"], new["steps"], new["steps_before_start"] = position.epoch, position.steps, position.steps
        new["steps_before_epoch"] = position.steps - position.epoch_steps
        new["lives"] = row["lives"] + 1
        for name in ROW.names or ():
            if name not in ("synced", "synced_slot"):
                row[name] = new[name]
        self.stop_votes[rank] = 0

    @staticmethod
    def mark_synced(row: Any, position: tuple[int, int, int] | None = None) -> None:
        """Record that the center has the steps of a row's worker up to a position, or all so far."""
        _put(row, position_of(row) if position is None else position)

    def mark_all_synced(self, row: Any) -> None:
        """Record that the center equals the model of a row's worker now, from which all others go on."""
        self.mark_synced(row)
        position = row["synced"][row["synced_slot"]].tolist()
        for other in self.table:
            _put(other, position)

    def position(self, rank: int) -> Position:
        """Return how far a worker was at its latest synchronization."""
        row = self.table[rank]
        while True:
            slot = int(row["synced_slot"])
            position = Position(*row["synced"][slot].tolist())
            if slot == row["synced_slot"]:
                return position

    def collectives(self, rank: int) -> Any:
        """Return a view of the field with a worker's latest collective on devices, see `Call.word`: shape (1,)."""
        return self.table["collectives"][rank : rank + 1]

    def left(self, rank: int) -> Any:
        """Return a view of the flag that a worker sets when it leaves in order: an array of shape (1,)."""
        return self.table["left"][rank : rank + 1]

    def write_text(self, rank: int, field: str, text: str) -> None:
        """Write a text field of a row, cut to its length."""
        row = self.table[rank]
        row[field] = to_bytes(text, row.dtype[field].itemsize)

    def read_text(self, rank: int, field: str) -> str:
        """Read a text field of a row."""
        return bytes(self.table[rank][field].item()).decode(errors="replace")

    def progress(self, rank: int) -> Progress:
        """Read the row of a rank."""
        row = self.table[rank]
        numbers = [row[name].item() for name in Progress._fields[:-1]]
        return Progress._make([*numbers, self.read_text(rank, "limit")])

    def phases(self, rank: int) -> PhaseTimes:
        """Read a worker's time by phase."""
        row = self.table[rank]
        return PhaseTimes(tuple(row["phase_seconds"].tolist()), row["phase_counts"].copy())
