import os
from platoon_base.job.files import JobFiles
from platoon_base.shm.segments import Segment

os.setgid(65534), os.setuid(65534)  # from here on this process may not even read the package
files = JobFiles(size=1).create()
try:
    with Segment.create(files.job_state, 4096):
        print(files.job_state, flush=True)
        input()  # all users have seen that name
        for name in (files.center, files.collective, files.data("x")):
            with Segment.create(name, 4096) as made, Segment.attach(name) as found:
                made.buffer[0] = 9
                print(found.buffer[0], flush=True)
finally:
    files.remove()
