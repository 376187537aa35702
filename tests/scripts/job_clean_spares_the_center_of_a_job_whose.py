from job_preamble import EASGD, connect, np, os
from platoon_base.job.files import JobFiles, leftovers

files = JobFiles.read(os.environ["PLATOON_JOB"])
with connect() as worker:
    worker.init_shared_params([np.zeros(10)], EASGD())
center = f"/dev/shm{files.center}"
os.utime(center, (0, 0))
assert center not in [str(leftover.path) for leftover in leftovers()]
