"""Jobs as a whole: joining one, hosting one, its files. The composition root: it alone chooses back ends.

`connect` is what scripts and adapters call, `host_job` what the launcher calls.
"""

from platoon_base.job.joining import Job, connect, connected, host_job, join, solo
from platoon_base.system.environment import DEVICE, JOB, RANK

__all__ = ["DEVICE", "JOB", "RANK", "Job", "connect", "connected", "host_job", "join", "solo"]
