"""The messages between the launcher of host 0 and the deputies of the other hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union

import msgspec

from platoon_base.checkpoints.files import About
from platoon_base.controller.processes import Exit
from platoon_base.courier.messages import News, Order
from platoon_base.errors import ProtocolError
from platoon_base.hosts import World

PROTOCOL = 11

# The annotations below are read at run time, on Python 3.9 too, so they use Union.


class Rows(msgspec.Struct, frozen=True):
    """Changed rows; ``sent_at`` is by the sender's clock, ``held`` has a byte per rank and lock."""

    sent_at: float = 0.0
    ranks: list[int] = []
    rows: bytes = b""
    held: bytes = b""


class Forwarded(msgspec.Struct, frozen=True, array_like=True):
    """One request or answer of a worker; ``peer`` is its connection to its own launcher."""

    peer: bytes
    request_id: bytes
    data: bytes


# Messages of a deputy.


class Arrive(msgspec.Struct, frozen=True, tag="arrive"):
    """A launcher has arrived; ``problem`` is the reason why the host cannot take part, or empty."""

    protocol: int
    version: str
    hosts: int
    host: int
    name: str
    devices: list[str]
    program: str
    pid: int
    problem: str = ""
    address: str = ""  # Other hosts reach this one here.
    first_address: str = ""  # This host reaches host 0 there.


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The host serves a job; earlier messages belong to an earlier job."""

    job: str


class Requests(msgspec.Struct, frozen=True, tag="requests"):
    """Requests of workers; ``rows`` were written before them."""

    requests: list[Forwarded]
    rows: Rows = Rows()


class WorkerEnded(msgspec.Struct, frozen=True, tag="worker-ended"):
    """The process of a worker has ended."""

    ended: Exit


class Signalled(msgspec.Struct, frozen=True, tag="signalled"):
    """The launcher of a host received a signal, its ``count``-th."""

    number: int
    count: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    why: str


# Messages of host 0.


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """All hosts have arrived: start the workers.

    ``job`` and ``log_folder`` are the job's name and absolute path on host 0. ``checkpoint`` is the
    file to resume from, or empty. Rank 0 listens at ``framework_address`` for a framework's own
    group. ``training`` holds the variables that all workers need alike, see `job.starting`.
    """

    world: World
    job: str
    log_folder: str
    checkpoint: str = ""
    framework_address: str = ""
    training: dict[str, str] = {}


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The host takes no part."""

    why: str


class Replies(msgspec.Struct, frozen=True, tag="replies"):
    replies: list[Forwarded]


class JobState(msgspec.Struct, frozen=True, tag="state"):
    """The state of the job on host 0; see `platoon_base.shm.job_state.JobState`.

    ``stop`` is the reason to stop, or empty. ``endings`` has the rank, the number of its processes,
    and how the latest ended, for each rank that ended since.
    """

    stop: str
    num_live: tuple[int, int]
    leader: int
    several: bool
    endings: list[tuple[int, int, str]] = []
    rows: Rows = Rows()


class SavedState(msgspec.Struct, frozen=True, tag="saved-state"):
    """The contents of host 0's latest checkpoint without its arrays, and the checkpoint folder."""

    about: About
    folder: str


class SignalWorker(msgspec.Struct, frozen=True, tag="signal-worker"):
    """Send a signal to a worker; see `WorkerProcesses.offer` for ``offered``."""

    rank: int
    number: int
    offered: bool = False


class StartAgain(msgspec.Struct, frozen=True, tag="start-again"):
    rank: int


class AdoptWorker(msgspec.Struct, frozen=True, tag="adopt-worker"):
    """Watch a worker that has joined late on this host."""

    rank: int
    pid: int
    pid_namespace: int


class JobOver(msgspec.Struct, frozen=True, tag="job-over"):
    """The job ended; ``again``: all workers are restarted after another `Welcome`."""

    status: int
    text: str
    again: bool = False


Up = Union[Arrive, Begun, Requests, WorkerEnded, Signalled, Failed, News]
Down = Union[
    Welcome,
    Refused,
    Replies,
    JobState,
    SavedState,
    Order,
    SignalWorker,
    StartAgain,
    AdoptWorker,
    JobOver,
]

_BATCH_BYTES = 1 << 22  # Bound on a message with several requests or answers.


def batches(items: Sequence[Forwarded]) -> Iterator[list[Forwarded]]:
    """Divide requests or answers, in order, into lists for one message each."""
    batch: list[Forwarded] = []
    size = 0
    for item in items:
        if batch and size + len(item.data) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item.data)
    if batch:
        yield batch


def _path(kind: Any, value: Any) -> Path:
    return Path(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=os.fspath)
_up_decoder: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up, dec_hook=_path)
_down_decoder: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)


def encode(message: Up | Down) -> bytes:
    return _encoder.encode(message)


def decode_up(data: bytes) -> Up:
    """Decode a message of a deputy; raises `ProtocolError` for anything else."""
    try:
        return _up_decoder.decode(data)
    except msgspec.MsgspecError as exc:
        raise ProtocolError(f"got an invalid message from another host ({exc}): {_ONE_VERSION}") from exc


def decode_down(data: bytes) -> Down:
    """Decode a message of host 0; raises `ProtocolError` for anything else."""
    try:
        return _down_decoder.decode(data)
    except msgspec.MsgspecError as exc:
        raise ProtocolError(f"got an invalid message from host 0 ({exc}): {_ONE_VERSION}") from exc


_ONE_VERSION = "install one version of this package on all hosts"
