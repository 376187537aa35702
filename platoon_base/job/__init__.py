"""Jobs as a whole: joining one, hosting one, its files. The composition root: `backends` alone chooses back ends.

`connect` is what scripts and adapters call, `host_job` what the launcher calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from platoon_base.job.joining import connect, connected, join, solo
from platoon_base.system.environment import DEVICE, JOB, RANK

if TYPE_CHECKING:
    from platoon_base.job.hosting import Job, JobOptions, host_job

__all__ = ["DEVICE", "JOB", "RANK", "Job", "JobOptions", "connect", "connected", "host_job", "join", "solo"]

_OF_HOSTS = ("Job", "JobOptions", "host_job")


def __getattr__(name: str) -> Any:
    """Import the controller when it is asked for first: a worker does without it."""
    if name not in _OF_HOSTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from platoon_base.job import hosting

    return getattr(hosting, name)
