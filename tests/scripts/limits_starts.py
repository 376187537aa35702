import os
import resource
import sys
from platoon_base.worker_process.program import Program, Start
from platoon_base.errors import PlatoonError
from platoon_base.job import host_job
from platoon_base.system.process import is_subreaper

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for spare in range(12):
    with host_job(1) as job:
        before = sorted(os.listdir("/proc/self/fd"))
        command = [sys.executable, "-c", "import time; time.sleep(1000)"]
        free = set(range(4096)) - set(map(int, before))
        limit = sorted(free)[spare]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            if sys.argv[1] == "forked":
                start = Start(0, command, dict(os.environ), None)
                job.start_forked(Program("none.py"), [], ["json"], [start])
            else:
                job.start(0, command, dict(os.environ), None)
            said = "started"
        except PlatoonError as exc:
            said = f"{type(exc).__name__}: {exc}"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        print(limit, said, flush=True)
        if said != "started":
            assert sorted(os.listdir("/proc/self/fd")) == before
            assert not is_subreaper()
