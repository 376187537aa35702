import os
from interrupting import at_instruction
from platoon_base import connect
from platoon_base.shm.job_state import USER_LOCK
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.job.files import JobFiles
from platoon_base.shm.segments import Segment

worker = connect()
other = Segment.attach(JobFiles.read(os.environ["PLATOON_JOB"]).job_state)
number, came = 1, True
while came:
    came = at_instruction(number, worker.lock, lambda: (worker.lock(), worker.unlock()))
    assert other.locked(USER_LOCK), number
    worker.unlock()
    assert not other.locked(USER_LOCK), number
    number += 1
assert number > 20
other.try_lock(USER_LOCK)
try:
    worker.lock(timeout_s=0)
except CollectiveTimeoutError:
    other.unlock(USER_LOCK)
worker.lock()
worker.unlock()
assert not other.locked(USER_LOCK)  # a lock that was not had is not freed twice
