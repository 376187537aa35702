"""Jobs as a whole: joining a job, hosting one, and its files.

Scripts and adapters call `connect`, the launcher calls `host_job`. Only `backends` chooses back
ends.
"""

from typing import TYPE_CHECKING

from platoon_base.job.joining import connect, connected, join, single_worker
from platoon_base.system.environment import DEVICE, JOB, RANK
from platoon_base.system.imports import lazy_names

if TYPE_CHECKING:
    from platoon_base.job.hosting import Job, JobOptions, host_job

__all__ = ["DEVICE", "JOB", "RANK", "Job", "JobOptions", "connect", "connected", "host_job", "join", "single_worker"]

# Importing `hosting` loads the controller, which a worker does not need.
__getattr__ = lazy_names(__name__, {"platoon_base.job.hosting": "Job JobOptions host_job"})
