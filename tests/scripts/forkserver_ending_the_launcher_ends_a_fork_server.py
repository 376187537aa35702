import os
import sys
from pathlib import Path
from platoon_base.job import host_job
from platoon_base.worker_process.program import Start
from platoon_base.worker_process.program import Program

start = Start(0, ["false"], dict(os.environ), Path("log"))
with host_job(1) as job:
    Path("folder").write_text(job.files.folder)
    job.start_forked(Program("script.py"), [], ["preparation"], [start])
    sys.exit(job.serve().status)
