"""The commands that start launchers on several hosts, by Slurm's `srun` or Open MPI's `mpirun`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from platoon_base.errors import ConfigurationError

# Processes on other hosts get the variables with these prefixes; mpirun exports only named
# variables.
PASSED = (
    "PLATOON_", "PLATOONRC", "THEANO_FLAGS", "KERAS_", "OMP_", "MKL_", "OPENBLAS_", "NCCL_", "TF_", "XLA_", "JAX_",
    "TORCH_", "PYTHON", "COLUMNS",
)  # fmt: skip


def command_on(hosts: Sequence[str], words: Sequence[str], environment: Mapping[str, str], origin: str) -> list[str]:
    """Return the command line that runs ``words`` once on each host.

    ``origin`` of the hosts' names is for messages. Raises `ConfigurationError` if there is neither
    an allocation of Slurm nor Open MPI, or if a host is named twice.
    """
    twice = sorted({host for host in hosts if list(hosts).count(host) > 1})
    if twice:
        raise ConfigurationError(
            f"{origin} names host {', '.join(twice)} more than once: name each host once, and set "
            "the number of its workers with -n"
        )
    for starter in _STARTERS:
        if starter.is_usable(environment):
            return [*starter.command(hosts, environment), *words]
    raise ConfigurationError(
        f"{origin} names {', '.join(hosts)}, and this host has no means to start launchers there: "
        f"{', and '.join(f'no {starter.name}' for starter in _STARTERS)}. Start a launcher on "
        f"each host yourself: platoon launch --nnodes {len(hosts)} --node-rank 0 --rdzv-endpoint "
        f"{hosts[0]} ..., with --node-rank 1 on the next, and so on"
    )


def _srun(hosts: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    count = len(hosts)
    words = ["srun", f"--nodelist={','.join(hosts)}", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    if cores := _fewest(environment.get("SLURM_JOB_CPUS_PER_NODE", "")):
        # Without it, all workers of a host would share one core.
        words.append(f"--cpus-per-task={cores}")
    # The other hosts may continue without one.
    return [*words, "--kill-on-bad-exit=0"]


def _fewest(cores: str) -> int:
    """Return the least number of a list such as ``16(x2),8``; 0 if there is none."""
    return min((int(number) for number in re.findall(r"(\d+)(?:\(x\d+\))?(?:,|$)", cores)), default=0)


def _mpirun(hosts: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    passed = [word for name in sorted(environment) if name.startswith(PASSED) for word in ("-x", name)]
    where = ",".join(f"{host}:1" for host in hosts)
    return ["mpirun", "-np", str(len(hosts)), "-H", where, "--bind-to", "none", *passed]


def _is_open_mpi() -> bool:
    words = ["mpirun", "--version"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return "Open MPI" in done.stdout


class _Starter(NamedTuple):
    """An engine that starts launchers on hosts that are named."""

    name: str
    is_usable: Callable[[Mapping[str, str]], bool]
    command: Callable[[Sequence[str], Mapping[str, str]], list[str]]


_STARTERS = (
    _Starter(
        "Slurm allocation (salloc, sbatch)",
        lambda environment: bool(environment.get("SLURM_JOB_ID") and shutil.which("srun")),
        _srun,
    ),
    _Starter("mpirun of Open MPI", lambda _: shutil.which("mpirun") is not None and _is_open_mpi(), _mpirun),
)
