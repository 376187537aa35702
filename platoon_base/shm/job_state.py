"""State of a running job in shared memory: stop flag, votes, progress, also that of other hosts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.errors import ConfigurationError, ProtocolError
from platoon_base.schedule import votes_suffice
from platoon_base.sharding import START, Position
from platoon_base.shm.phases import BINS, PARTS, PHASES, PhaseTimes
from platoon_base.shm.schema import Part, Schema, Views, Word
from platoon_base.system.text import to_bytes

# Bytes of the segment with a lock; locking does not change the bytes.
CONTROLLER_LOCK = 0  # Held while the controller lives.
USER_LOCK = 1  # Worker.lock() and unlock().
# Held by the worker with the turn, and by the controller while it reads the center; see `turns`.
TURN_LOCK = 2
WORKER_LOCKS = 1024  # + rank: held while that worker takes part.

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
        ("synced", "i8", (2, 3)),  # The latest two positions, one of which is always complete.
        ("synced_slot", "i8"),
        ("epoch_steps", "i8"),
        ("last_epoch", "i8"),
        ("last_step", "i8"),
        ("bound", "i8"),
        ("waited_at", "f8"),
        ("led", "i8"),
        ("cpu_percent", "f8"),
        ("memory_bytes", "i8"),
        ("limit", "S48"),
        ("waiting_in", "S128"),
        ("phase_seconds", "f8", (len(PHASES),)),
        # Other hosts do not see the fields from here on.
        ("ending", "S512"),
        ("phase_counts", "u4", (len(PARTS), BINS)),
        ("turn_clock", "i8"),  # See `turns`: a single word, read atomically.
        ("round", "i8"),  # Latest round whose step this worker has made.
    ],
    align=True,
)
# These grow as a worker makes progress.
_SIGNS = ("epoch", "steps", "syncs", "copies", "collectives", "waits", "lives")

_STATE = Schema(
    "the state of a job",
    b"PLTNSTAT",
    16,
    [
        ("rows", "u4"),
        ("stop", "u4"),
        ("several", "u4"),
        ("num_live", "u4"),
        ("num_live_everywhere", "u4"),
        ("leader", "u4"),
        ("reason", "S256"),
    ],
    # The votes are not in the rows: few cache lines hold those of all workers.
    lambda header, layout: [Part("table", ROW, (int(header["rows"]),)), Part("votes", "i8", (int(header["rows"]),))],
    ProtocolError,
)


def position_of(row: Any) -> tuple[int, int, int]:
    """Return a row's epoch, its steps within the epoch, and all its steps."""
    return int(row["epoch"]), int(row["steps"] - row["steps_before_epoch"]), int(row["steps"])


def _put(row: Any, position: Sequence[int]) -> None:
    """Write a position to the unused slot, and then make it the latest."""
    slot = 1 - row["synced_slot"]
    row["synced"][slot] = position
    row["synced_slot"] = slot


class Progress(NamedTuple):
    """Progress written by one worker."""

    epoch: int
    steps: int
    syncs: int
    loss: float  # NaN until the worker has reported one.
    sync_seconds: float  # Since ``started``.
    started: float  # Monotonic clock of the first step, in seconds.
    updated: float  # Monotonic clock of the latest step, in seconds.
    steps_before_start: int = 0  # Steps of an earlier process of this rank.
    copies: int = 0  # Copies from and to the center, without the one that shared the parameters.
    steps_before_epoch: int = 0
    # Steps of an epoch, and the last epoch and step of the training; 0 if unknown.
    epoch_steps: int = 0
    last_epoch: int = 0
    last_step: int = 0
    bound: int = 0  # 1 after the barrier before training; 2 if the worker then compiles nothing.
    waits: int = 0  # Counts the start and the end of each collective call, so it is odd within one.
    waited_at: float = 0.0  # Monotonic clock of the latest wait in a collective call on arrays.
    cpu_percent: float = 0.0  # Processor time of the process in the latest second; 100 is one core.
    memory_bytes: int = 0  # Memory of the process in RAM; 0 before the first second has passed.
    limit: str = ""  # Such as "patience 3/15". It must be the last field: `progress` reads it as text.

    @property
    def exchanges(self) -> int:
        """Number of synchronizations and copies."""
        return self.syncs + self.copies


class JobState:
    """State of a job, in shared memory or, in a single-worker job, in plain memory."""

    leader = Word("leader")  # Rank of the leader: 0, or the lowest that is not lost.

    def __init__(self, buffer: Any, rows: int, create: bool) -> None:
        self._use_memory(buffer, _STATE.write(buffer, rows=rows) if create else _STATE.read(buffer, name="of a job"))
        if create:
            self.table["loss"] = np.nan

    def _use_memory(self, buffer: Any, views: Views) -> None:
        self._bytes = np.frombuffer(buffer, np.uint8)
        self._header, self.table, self.stop_votes = views.header, views.table, views.votes
        self._stop = self._header["stop"][...]

    def detach(self) -> None:
        """Switch to a private copy: the memory can be unmapped while threads read the state."""
        copy = bytearray(self._bytes)
        self._use_memory(copy, _STATE.read(copy))

    @staticmethod
    def size_bytes(rows: int) -> int:
        return _STATE.place(rows=rows).nbytes

    @property
    def stopping(self) -> bool:
        return bool(self._stop)

    @property
    def stop_reason(self) -> str:
        """Why the job stops; empty while it does not."""
        return bytes(self._header["reason"].item()).decode(errors="replace")

    def stop(self, reason: str) -> None:
        """Set the stop flag; the first reason is kept."""
        if not self.stopping:
            self._header["reason"] = to_bytes(reason, self._header.dtype["reason"].itemsize)
            self._header["stop"] = 1

    @property
    def shared_by_several(self) -> bool:
        return bool(self._header["several"])

    def note_several(self) -> None:
        self._header["several"] = 1

    @property
    def num_live(self) -> tuple[int, int]:
        """Number of participating or expected workers: on this host, on all hosts."""
        header = self._header
        return max(1, int(header["num_live"])), max(1, int(header["num_live_everywhere"]))

    @num_live.setter
    def num_live(self, counts: tuple[int, int]) -> None:
        self._header["num_live"], self._header["num_live_everywhere"] = counts

    def signs(self) -> Any:
        """Return counters that grow when a worker makes progress, of shape (signs, rows)."""
        return np.stack([self.table[name] for name in _SIGNS])

    @property
    def rows(self) -> int:
        return len(self.table)

    def row(self, rank: int) -> Any:
        return self.table[rank]

    def start_row(self, rank: int, position: Position = START) -> None:
        """Reset the row of a worker that joins at a position."""
        row = self.table[rank]
        _put(row, position)  # This comes first, since `position` can be called at any moment.
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
        """Record that the center has a worker's steps up to a position, by default all so far."""
        _put(row, position_of(row) if position is None else position)

    def mark_all_synced(self, row: Any) -> None:
        """Record that the center equals this worker's model, from which all others continue."""
        self.mark_synced(row)
        position = row["synced"][row["synced_slot"]].tolist()
        for other in self.table:
            _put(other, position)

    def position(self, rank: int) -> Position:
        """Return a worker's position at its latest synchronization."""
        row = self.table[rank]
        while True:
            slot = int(row["synced_slot"])
            position = Position(*row["synced"][slot].tolist())
            if slot == row["synced_slot"]:
                return position

    def collectives(self, rank: int) -> Any:
        """Return a view, of shape (1,), of a worker's latest collective, see `Call.word`."""
        return self.table["collectives"][rank : rank + 1]

    def left(self, rank: int) -> Any:
        """Return a view, of shape (1,), of the flag that a worker sets when it leaves in order."""
        return self.table["left"][rank : rank + 1]

    def write_text(self, rank: int, field: str, text: str) -> None:
        """Write a text field of a row, truncated to its length."""
        row = self.table[rank]
        row[field] = to_bytes(text, row.dtype[field].itemsize)

    def read_text(self, rank: int, field: str) -> str:
        return bytes(self.table[rank][field].item()).decode(errors="replace")

    def progress(self, rank: int) -> Progress:
        row = self.table[rank]
        numbers = [row[name].item() for name in Progress._fields[:-1]]
        return Progress._make([*numbers, self.read_text(rank, "limit")])

    def phases(self, rank: int) -> PhaseTimes:
        row = self.table[rank]
        return PhaseTimes(tuple(row["phase_seconds"].tolist()), row["phase_counts"].copy())


# The last fields of a row are large, or have a meaning on one host only.
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


class StopVotes:
    """Votes of all workers of a job, in rounds that all workers number alike."""

    def __init__(self, job_state: JobState, rank: int) -> None:
        # A vote is the number of its round: votes need no clearing, and rounds may overlap.
        self.number = 0
        self._votes = job_state.stop_votes
        self._closed = False
        self._rank = rank
        self._seen = b""  # All votes at the last poll, of which `_voters` belong to this round.
        self._voters: frozenset[int] = frozenset()

    def open(self, number: int) -> None:
        """Enter round ``number``, at least 1 and new each time; this worker has not voted in it."""
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 1:
            raise ConfigurationError(f"got round {number!r}: rounds of votes are counted from 1")
        self._require_part()
        if self._votes[self._rank] == number:
            self._votes[self._rank] = 0
        self.number = int(number)
        self._seen = b""

    def cast(self) -> None:
        """Vote to stop in the open round; idempotent."""
        self._require_open()
        self._require_part()
        self._votes[self._rank] = self.number

    def voters(self) -> set[int]:
        """Return the ranks that voted in the open round, including workers that have left since."""
        self._require_open()
        votes = self._votes.tobytes()
        if votes != self._seen:
            cast = np.frombuffer(votes, dtype=self._votes.dtype) == self.number
            self._seen, self._voters = votes, frozenset(np.flatnonzero(cast).tolist())
        return set(self._voters)

    def passed(self, policy: str, participants: Collection[int]) -> bool:
        """Return whether the votes of ``participants`` suffice; see `votes_suffice`."""
        return votes_suffice(policy, self.voters(), participants)

    def close(self) -> None:
        """Detach from the shared memory; the votes keep their last values."""
        self._closed = True
        self._votes = self._votes.copy()

    def _require_part(self) -> None:
        if self._closed:
            raise ConfigurationError("this worker has left the job: it cannot vote after close()")

    def _require_open(self) -> None:
        if not self.number:
            raise ConfigurationError("no round of votes is open: call open(number) first")
