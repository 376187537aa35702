"""Which of the hosts of a job this is: told by options, or by the variables of the engine that started the launcher.

All of them are read here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from platoon_base.errors import ConfigurationError

__all__ = ["Place", "find_place"]


class Place(NamedTuple):
    """One of the hosts of a job.

    Attributes
    ----------
    hosts : int
        How many there are.
    host : int
        Which of them this is, from 0.
    told_by : str
        The option or the variables that say so; empty for a job of this host alone.
    """

    hosts: int
    host: int
    told_by: str = ""


LOCAL = Place(1, 0)


class _Engine(NamedTuple):
    """The variables by which an engine tells each process that it has started who it is.

    Attributes
    ----------
    processes, rank : str
        How many processes it has started in all, and which of them this is.
    here : str
        How many of them are on this host; empty if that is not told.
    per_host : str
        How to have it start one on each host.
    """

    name: str
    processes: str
    rank: str
    here: str
    per_host: str


_OMPI = "OMPI_COMM_WORLD"
# In this order: mpirun within a job of Slurm passes on what it was given. Of Slurm those of a step count, as a batch
# script of several hosts runs on the first one alone.
_ENGINES = (
    _Engine(
        "mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "--map-by ppr:1:node"
    ),
    _Engine("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "", "--ntasks-per-node=1"),
    _Engine("mpiexec", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "-ppn 1"),
)


def find_place(environment: Mapping[str, str], hosts: int | None = None, index: int | None = None) -> Place:
    """Find out which of the hosts of a job this is; options count before variables, torchrun's before an engine's.

    Parameters
    ----------
    environment : mapping of str to str
    hosts, index : int, optional
        As ``--nnodes`` and ``--node-rank`` say.

    Raises
    ------
    ConfigurationError
        If they are no numbers or contradict each other, or if several launchers were started on one host.
    """
    told_by = "--nnodes"
    if hosts is None:
        hosts, told_by = _number(environment, "PET_NNODES"), "PET_NNODES"
    if index is None:
        index = _number(environment, "PET_NODE_RANK")
    if hosts is None:
        return _of_engine(environment)
    if hosts == 1:
        return LOCAL
    if index is None:
        index = _number(environment, "JOB_COMPLETION_INDEX")  # of an indexed job of Kubernetes
    if index is None:
        raise ConfigurationError(
            f"got {hosts} hosts from {told_by}, and nothing says which of them this is: say --node-rank 0 on the first "
            "host, 1 on the next, and so on"
        )
    return _checked(Place(hosts, index, told_by))


def _of_engine(environment: Mapping[str, str]) -> Place:
    for engine in _ENGINES:
        processes, rank = _number(environment, engine.processes), _number(environment, engine.rank)
        if processes is None or rank is None:
            continue
        told_by = f"{engine.name} ({engine.processes}={processes}, {engine.rank}={rank})"
        here = _number(environment, engine.here) if engine.here else _tasks_here(environment)
        if here is not None and here > 1:
            raise ConfigurationError(
                f"got {processes} launchers from {told_by}, {here} of them on this host: start one on a host, which "
                f"starts the workers there, as many as -n says ({engine.name} {engine.per_host}), or say --nnodes 1 "
                "for jobs of their own"
            )
        return LOCAL if processes == 1 else _checked(Place(processes, rank, told_by))
    return LOCAL


def _tasks_here(environment: Mapping[str, str]) -> int | None:
    """Return how many tasks of this step Slurm has started on this host, of a list such as ``2(x3),1``."""
    text, node = environment.get("SLURM_STEP_TASKS_PER_NODE", ""), _number(environment, "SLURM_NODEID")
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        number, _, times = part.partition("(x")
        numbers += [int(number)] * int(times.rstrip(")") or 1)
    return numbers[node] if node is not None and node < len(numbers) else None


def _checked(place: Place) -> Place:
    if place.hosts < 1:
        raise ConfigurationError(f"got {place.hosts} hosts from {place.told_by}: there must be at least one")
    if not 0 <= place.host < place.hosts:
        raise ConfigurationError(
            f"got host {place.host} of {place.hosts} from {place.told_by}: it must be one of 0 to {place.hosts - 1}"
        )
    return place


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"got {name}={text!r}: it must be a whole number")
    return int(text)
