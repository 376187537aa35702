"""The messages between the launcher of the first host and the deputies of the others, and how they are encoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional, Union

import msgspec

from platoon_base.checkpoints.files import About
from platoon_base.courier.messages import Combine, Gather, Gathered, Keep, LeftOut
from platoon_base.errors import ProtocolError
from platoon_base.hosts.world import World
from platoon_base.worker_process.failure import Failure

__all__ = [
    "PROTOCOL",
    "AdoptWorker",
    "Arrive",
    "Begun",
    "CenterDropped",
    "CenterFilled",
    "CenterMade",
    "CourierListens",
    "Couriers",
    "Down",
    "Failed",
    "Forwarded",
    "HostLost",
    "JobOver",
    "JobState",
    "Refused",
    "Replies",
    "Requests",
    "Rows",
    "SavedState",
    "SignalWorker",
    "Signalled",
    "StartAgain",
    "StartCourier",
    "Up",
    "Welcome",
    "WorkerEnded",
    "batches",
    "decode_down",
    "decode_up",
    "encode",
]

PROTOCOL = 7

# The annotations below are read at run time, on Python 3.9 too, hence Optional and Union.


class Rows(msgspec.Struct, frozen=True):
    """Rows of the job's state that have changed.

    Attributes
    ----------
    sent_at : float
        By the sender's monotonic clock.
    ranks : list of int
    rows : bytes
        An array of `platoon_base.shm.mirrored_rows.MIRRORED` for these ranks.
    held : bytes
        One byte per rank, 1 if its worker holds its lock.
    """

    sent_at: float = 0.0
    ranks: list[int] = []
    rows: bytes = b""
    held: bytes = b""


class Forwarded(msgspec.Struct, frozen=True, array_like=True):
    """One request or answer of a worker: its connection to its own launcher, the request's id and the message."""

    peer: bytes
    request_id: bytes
    data: bytes


# From a deputy.


class Arrive(msgspec.Struct, frozen=True, tag="arrive"):
    """A launcher is there.

    Attributes
    ----------
    protocol : int
    version : str
        Of this package.
    hosts, host : int
        How many hosts there are, and which of them this is.
    name : str
        The host's name, for messages.
    address, first_address : str
        Its own address towards the first host, and that of the first host.
    devices : list of str
        One for each worker to start here.
    program : str
        A fingerprint of the script and its arguments.
    pid : int
    problem : str
        Why it cannot take part; empty if it can.
    """

    protocol: int
    version: str
    hosts: int
    host: int
    name: str
    address: str
    first_address: str
    devices: list[str]
    program: str
    pid: int
    problem: str = ""


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The host serves a job; what comes before is of an earlier one."""

    job: str


class Requests(msgspec.Struct, frozen=True, tag="requests"):
    """Requests of workers; ``rows`` were written before."""

    requests: list[Forwarded]
    rows: Rows = Rows()


class WorkerEnded(msgspec.Struct, frozen=True, tag="worker-ended"):
    """The process of a worker has ended; see `platoon_base.controller.processes.Exit`."""

    rank: int
    status: int
    log_file: str = ""
    why: str = ""
    failure: Optional[Failure] = None
    log_begin: int = 0
    at: float = 0.0


class Signalled(msgspec.Struct, frozen=True, tag="signalled"):
    """A signal has reached the launcher of a host; ``count`` is the number of signals that it has got so far."""

    number: int
    count: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The launcher of a host cannot go on, for the reason given, and ends."""

    why: str


class CourierListens(msgspec.Struct, frozen=True, tag="courier-listens"):
    """Where the courier of a host listens: an address, a port and a token in hexadecimal digits."""

    at: tuple[str, int, str]


class CenterFilled(msgspec.Struct, frozen=True, tag="center-filled"):
    """The center of a host holds the initial values of all hosts."""


# From the first host.


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """All hosts are there: start the workers.

    Attributes
    ----------
    world : World
    job : str
        The job's name on the first host.
    log_folder : str
        Its absolute path there.
    host_timeout_s : float
        A host that is silent for so long is lost.
    grace_s : float
        How long workers have to end once they have to.
    checkpoint : str
        The file that the job is resumed from; empty for a new one.
    framework_address : str
        Where rank 0 listens for a framework's own group.
    lifeline : (int, str)
        The port and the token of the first host's, see `LinkClient.hold`; the port is 0 if it has none.
    training : dict of str to str
        The variables that name the rule and its period, which count on all hosts; see `job.starting`.
    """

    world: World
    job: str
    log_folder: str
    host_timeout_s: float
    grace_s: float
    checkpoint: str = ""
    framework_address: str = ""
    lifeline: tuple[int, str] = (0, "")
    training: dict[str, str] = {}


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The host takes no part, for the reason given."""

    why: str


class Replies(msgspec.Struct, frozen=True, tag="replies"):
    """Answers to workers."""

    replies: list[Forwarded]


class JobState(msgspec.Struct, frozen=True, tag="state"):
    """The state of the job as the first host has it.

    Attributes
    ----------
    stop : str
        The reason to stop; empty while there is none.
    num_live : (int, int)
        See `platoon_base.shm.job_state.JobState`.
    leader : int
    several : bool
    endings : list of (int, int, str)
        For each rank that ended since: the rank, the number of its processes so far, and how the latest ended.
    rows : Rows
    """

    stop: str
    num_live: tuple[int, int]
    leader: int
    several: bool
    endings: list[tuple[int, int, str]] = []
    rows: Rows = Rows()


class SavedState(msgspec.Struct, frozen=True, tag="saved-state"):
    """The contents of the first host's latest checkpoint besides its arrays, and the folder of the checkpoints."""

    about: About
    folder: str


class StartCourier(msgspec.Struct, frozen=True, tag="start-courier"):
    """Start the courier, for parameters that the workers share; see `platoon_base.courier.messages.Begin`."""

    specs: list[tuple[str, tuple[int, ...], str]]
    moments: int
    rule: str
    every_s: float
    resumed: Optional[tuple[str, str]] = None


class Couriers(msgspec.Struct, frozen=True, tag="couriers"):
    """The addresses of the hosts' couriers, the live workers of each host, and the host with the initial values."""

    at: dict[int, tuple[str, int, str]]
    workers: dict[int, int]
    source: int = 0


class CenterMade(msgspec.Struct, frozen=True, tag="center-made"):
    """A worker of the host has made its center."""


class CenterDropped(msgspec.Struct, frozen=True, tag="center-dropped"):
    """All workers have released the center."""


class HostLost(msgspec.Struct, frozen=True, tag="host-lost"):
    """A host is lost."""

    host: int


class SignalWorker(msgspec.Struct, frozen=True, tag="signal-worker"):
    """Send a signal to a worker; see `WorkerProcesses.offer` for ``offered``."""

    rank: int
    number: int
    offered: bool = False


class StartAgain(msgspec.Struct, frozen=True, tag="start-again"):
    """Restart a worker that has ended."""

    rank: int


class AdoptWorker(msgspec.Struct, frozen=True, tag="adopt-worker"):
    """Watch a worker that has joined late on this host."""

    rank: int
    pid: int
    pid_namespace: int


class JobOver(msgspec.Struct, frozen=True, tag="job-over"):
    """The job has ended.

    Attributes
    ----------
    status : int
        The exit status of all launchers.
    text : str
        Why it ended, in a line.
    again : bool
        Whether all workers are restarted, after another `Welcome`.
    """

    status: int
    text: str
    again: bool = False


Up = Union[Arrive, Begun, Requests, WorkerEnded, Signalled, Failed, CourierListens, CenterFilled, Gathered, LeftOut]
Down = Union[
    Welcome,
    Refused,
    Replies,
    JobState,
    SavedState,
    StartCourier,
    Couriers,
    CenterMade,
    CenterDropped,
    HostLost,
    Gather,
    Combine,
    Keep,
    SignalWorker,
    StartAgain,
    AdoptWorker,
    JobOver,
]

_BATCH_BYTES = 1 << 22  # of requests or answers in one message; one alone may be as large


def batches(items: Sequence[Forwarded]) -> Iterator[list[Forwarded]]:
    """Divide requests or answers, in their order, into lists that are each sent as one message."""
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


_encoder = msgspec.msgpack.Encoder()
_up_decoder: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
_down_decoder: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)


def encode(message: Up | Down) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode_up(data: bytes) -> Up:
    """Decode a message of a deputy; raises `ProtocolError` for anything else."""
    try:
        return _up_decoder.decode(data)
    except msgspec.MsgspecError as exc:
        raise ProtocolError(f"got a message of another host that is none ({exc}): {_ONE_VERSION}") from exc


def decode_down(data: bytes) -> Down:
    """Decode a message of the first host; raises `ProtocolError` for anything else."""
    try:
        return _down_decoder.decode(data)
    except msgspec.MsgspecError as exc:
        raise ProtocolError(f"got a message of the first host that is none ({exc}): {_ONE_VERSION}") from exc


_ONE_VERSION = "install one version of this package on all hosts"
