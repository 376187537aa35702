"""Jobs as a whole: joining one, hosting one, its files. The composition root: `backends` alone chooses back ends.

`connect` is what scripts and adapters call, `host_job` what the launcher calls.
"""

from typing import TYPE_CHECKING

from platoon_base.job.joining import connect, connected, join, single_worker
from platoon_base.system.environment import DEVICE, JOB, RANK
from platoon_base.system.lazy import lazy_names

if TYPE_CHECKING:
    from platoon_base.job.hosting import Job, JobOptions, host_job

__all__ = ["DEVICE", "JOB", "RANK", "Job", "JobOptions", "connect", "connected", "host_job", "join", "single_worker"]

# A worker does without the controller, which hosting loads.
__getattr__ = lazy_names(__name__, dict.fromkeys(("Job", "JobOptions", "host_job"), "platoon_base.job.hosting"))
