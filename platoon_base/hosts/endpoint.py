"""The endpoint of host 0 of a job: from an option, torchrun's variables or the engine's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

__all__ = ["engine_job", "find_endpoint", "first_of"]

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
        job, step = (_number(environment.get(name, "")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        # Steps of one user on one node, and jobs that share nodes, need ports of their own.
        return f"{first_of(nodes)}:{_PORTS[(31 * job + step) % len(_PORTS)]}"
    return ""


def engine_job(environment: Mapping[str, str]) -> str:
    """Return the engine's name for the group of processes that it has started, or ""."""
    for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_KVS"):
        if found := re.sub(r"\W", "_", environment.get(name, "")):
            return f"{name}-{found}"
    return ""


def first_of(nodes: str) -> str:
    """Return the first name of a list as Slurm writes it, such as ``n[08-11,20],login``."""
    found = _LIST.match(nodes)
    return "" if found is None else f"{found[1]}{found[2] or ''}{found[3] or ''}"


def _number(text: str) -> int:
    with contextlib.suppress(ValueError):
        return int(text)
    return 0
