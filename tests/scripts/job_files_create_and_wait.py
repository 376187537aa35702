from platoon_base.job.files import JobFiles
from platoon_base.shm.segments import Segment

files = JobFiles(size=2).create()
segments = [Segment.create(files.job_state, 4096), Segment.create(files.center, 8192)]
print(files.folder, flush=True)
input()
