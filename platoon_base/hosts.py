"""The hosts of a job: the index of this one, the address of host 0, and what workers know of all."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from platoon_base.errors import ConfigurationError


class World(msgspec.Struct, frozen=True):
    """The hosts of a job; ranks are numbered across hosts."""

    workers: list[int] = []  # Workers launched on each host; empty for a job of this host only.
    host: int = 0
    names: list[str] = []
    addresses: list[str] = []
    data_key: str = ""  # 32 bytes in hexadecimal encrypt data between hosts; empty: unencrypted.
    compression: str = "none"  # See `platoon_base.compression.codecs.codec_of`.

    def __repr__(self) -> str:  # Logs may contain it, so the key is left out.
        return f"World(workers={self.workers}, host={self.host}, names={self.names}, addresses={self.addresses}, ...)"

    @property
    def hosts(self) -> int:
        return max(1, len(self.workers))  # A job of this host only has an empty list.

    @property
    def several(self) -> bool:
        return self.hosts > 1

    @property
    def size(self) -> int:
        return sum(self.workers)

    def ranks_on(self, host: int) -> range:
        first = sum(self.workers[:host])
        return range(first, first + self.workers[host])

    @property
    def ranks_here(self) -> range:
        return self.ranks_on(self.host)

    def host_of(self, rank: int) -> int:
        """Return the host that a rank was launched on; raise IndexError for other ranks."""
        if not 0 <= rank < self.size:
            raise IndexError(rank)
        return bisect.bisect_right(list(itertools.accumulate(self.workers)), rank)

    def named(self, host: int) -> str:
        name = self.names[host] if host < len(self.names) else ""
        return f"host {host} ({name})" if name else f"host {host}"


ONE_HOST = World()


# No other module reads these variables.


class Place(NamedTuple):
    """One of the hosts of a job; ``origin`` is the option or variable, empty for a local job."""

    hosts: int
    host: int
    origin: str = ""


LOCAL = Place(1, 0)


class _Engine(NamedTuple):
    """The names of the variables that an engine sets in each process that it starts.

    ``here`` is the number of its processes on this host: without it, another engine set the others.
    An empty ``here`` is not checked; Slurm has a list of all hosts instead.
    """

    name: str
    processes: str
    rank: str
    here: str


_OMPI = "OMPI_COMM_WORLD"
_MPIEXEC = _Engine("mpiexec", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS")
# Inner engines come first: MPI within a Slurm job keeps Slurm's variables. For Slurm only a step
# counts, since a batch script runs on the first host only. Slurm may set PMI_SIZE too, without a
# number for this host.
_ENGINES = (
    _Engine("mpirun", f"{_OMPI}_SIZE", f"{_OMPI}_RANK", f"{_OMPI}_LOCAL_SIZE"),
    _MPIEXEC,
    _Engine("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", ""),
    _MPIEXEC._replace(here="PMI_LOCAL_SIZE"),
    _MPIEXEC._replace(here=""),
)
START_ONE = (
    "start one launcher (srun -N1 -n1, mpirun -np 1), or pass --nnodes 1 (PET_NNODES=1 in the "
    "environment) for separate jobs"
)


class Copies(NamedTuple):
    """Processes of one script that an engine has started without `platoon launch`."""

    processes: int
    rank: int
    origin: str


# Engines that start scripts, not launchers. Inner ones come first: torchrun may run in Slurm.
_STARTERS = (
    _Engine("torchrun or the like", "WORLD_SIZE", "RANK", ""),
    _Engine("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK", ""),
    *(engine._replace(here="") for engine in _ENGINES[:1]),
    _Engine("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", ""),
    _Engine("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", ""),
    *_ENGINES[1:],
)


def find_copies(environment: Mapping[str, str]) -> Copies | None:
    """Return the processes that an engine has started as this one, if there are several."""
    for engine in _STARTERS:
        try:
            processes, rank = _number(environment, engine.processes), _number(environment, engine.rank)
        except ConfigurationError:  # Another program set the variable.
            continue
        if processes is not None and rank is not None and (not engine.here or engine.here in environment):
            origin = f"{engine.name} ({engine.processes}={processes})"
            return Copies(processes, rank, origin) if processes > 1 else None
    return None


def find_place(
    environment: Mapping[str, str], hosts: int | None = None, index: int | None = None, endpoint: str | None = None
) -> Place:
    """Return which host of a job this is: from options, torchrun's variables or an engine's.

    It raises `ConfigurationError` if a number is missing, invalid or contradictory, or if several
    launchers were started on one host.
    """
    origin = "--nnodes"
    if hosts is None:
        hosts, origin = _number(environment, "PET_NNODES"), "PET_NNODES"
    if hosts == 1 and not index:
        return LOCAL
    if index is None:
        index = _number(environment, "PET_NODE_RANK")
    if hosts is None and index is not None:
        raise ConfigurationError(
            f"got host {index}, and the number of hosts is unknown: pass --nnodes too (--nnodes 1 "
            "for a job on this host)"
        )
    if hosts is None:
        place = _of_engine(environment)
        if place is None and endpoint:
            raise ConfigurationError(
                f"got --rdzv-endpoint {endpoint}, and the number of hosts is unknown: pass "
                "--nnodes N on all of them, --node-rank 0 on the first, 1 on the next, and so on"
            )
        return place or LOCAL
    if index is None:
        index = _number(environment, "JOB_COMPLETION_INDEX")  # Kubernetes sets it in indexed jobs.
    if index is None:
        place = _of_engine(environment) or LOCAL
        index = place.host if place.hosts == hosts else None
    if index is None:
        raise ConfigurationError(
            f"got {hosts} hosts from {origin}, and the index of this host is unknown: pass "
            "--node-rank 0 on the first host, 1 on the next, and so on"
        )
    return _checked(Place(hosts, index, origin))


def _of_engine(environment: Mapping[str, str]) -> Place | None:
    """Return the place from the engine's variables; None if no engine started this launcher."""
    for engine in _ENGINES:
        processes, rank = _number(environment, engine.processes), _number(environment, engine.rank)
        if processes is None or rank is None or (engine.here and engine.here not in environment):
            continue
        origin = f"{engine.name} ({engine.processes}={processes}, {engine.rank}={rank})"
        together = _number(environment, engine.here) if engine.here else _most_tasks(environment)
        if together is not None and together > 1:
            raise ConfigurationError(
                f"got {processes} launchers from {origin}, {together} of them on one host: one "
                f"launcher per host starts all its workers (-n is their number); {START_ONE}"
            )
        return LOCAL if processes == 1 else _checked(Place(processes, rank, origin))
    return None


def _most_tasks(environment: Mapping[str, str]) -> int | None:
    """Return the largest number of tasks of this step on a host, from a list as ``2(x3),1``."""
    numbers = re.findall(r"(\d+)(?:\(x\d+\))?(?:,|$)", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return max(map(int, numbers), default=None)


def _checked(place: Place) -> Place:
    if place.hosts < 1:
        raise ConfigurationError(f"got {place.hosts} hosts from {place.origin}: there must be at least one")
    if not 0 <= place.host < place.hosts:
        raise ConfigurationError(
            f"got host {place.host} of {place.hosts} from {place.origin}: it must be one of 0 to {place.hosts - 1}"
        )
    return place


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    least, colon, most = text.partition(":")
    if colon and least == most:  # torchrun writes a fixed number as a range.
        text = least
    if not text.isdecimal():
        raise ConfigurationError(f"got {name}={text!r}: it must be a whole number")
    return int(text)


_PORTS = range(29500, 31500)
_LIST = re.compile(r"^([^\[,]*)(?:\[(\d+)[^\]]*\]([^,]*))?")


def find_endpoint(environment: Mapping[str, str], given: str | None = None) -> str:
    """Return ``HOST`` or ``HOST:PORT``; ``given`` is the option; empty if nothing sets it."""
    if given:
        return given
    if endpoint := environment.get("PET_RDZV_ENDPOINT", ""):
        return endpoint
    if address := environment.get("MASTER_ADDR", ""):
        port = environment.get("MASTER_PORT", "")
        return f"{address}:{port}" if port else address
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    if nodes and environment.get("SLURM_JOB_ID"):
        job, step = (_whole_number(environment.get(name, "")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        # Steps of one user on one node, and jobs that share nodes, need ports of their own.
        return f"{first_of(nodes)}:{_PORTS[(31 * job + step) % len(_PORTS)]}"
    return ""


def engine_job(environment: Mapping[str, str]) -> str:
    """Return the engine's name for the group of processes that it has started, or ""."""
    for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_KVS"):
        if found := re.sub(r"\W", "_", environment.get(name, "")):
            return f"{name}-{found}"
    return ""


def engine_addresses(environment: Mapping[str, str]) -> list[str]:
    """Return the addresses of the engine's own server, which may be on another interface."""
    uris = (environment.get(name, "") for name in ("OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI2"))
    return [each for uri in uris for each in uri.partition("://")[2].partition(":")[0].split(",") if each]


def first_of(nodes: str) -> str:
    """Return the first name of a list as Slurm writes it, such as ``n[08-11,20],login``."""
    found = _LIST.match(nodes)
    return "" if found is None else f"{found[1]}{found[2] or ''}{found[3] or ''}"


def _whole_number(text: str) -> int:
    with contextlib.suppress(ValueError):
        return int(text)
    return 0
