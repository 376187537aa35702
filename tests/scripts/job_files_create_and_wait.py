from platoon_base.job.files import JobFiles
from platoon_base.shm.segments import Segment

files = JobFiles.create(2)
segments = [Segment.create(files.job_state, 4096), Segment.create(files.center, 8192)]
print(files.folder, flush=True)
input()
