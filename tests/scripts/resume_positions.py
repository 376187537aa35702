from job_preamble import EASGD, LocalSGD, connect, np, os
from platoon_base.job.files import JobFiles
from platoon_base.shm.job_state import JobState
from platoon_base.shm.segments import Segment
from platoon_base.system.environment import MAX_WORKERS

worker, seen = connect(), []
segment = Segment.attach(JobFiles.read(os.environ["PLATOON_JOB"]).job_state)
job_state = JobState(segment.buffer, rows=MAX_WORKERS, create=False)


def steps_in_the_center():
    return job_state.position(worker.global_rank).steps


class SpiedEASGD(EASGD):
    kernel = None

    def sync(self, *arrays):
        seen.append(steps_in_the_center())
        super().sync(*arrays)


class SpiedLocalSGD(LocalSGD):
    step_kernel = None

    def step(self, *args):
        seen.append(steps_in_the_center())
        super().step(*args)


x, made = np.zeros(10), 0
for rule in (SpiedEASGD(0.5), SpiedLocalSGD()):
    worker.init_shared_params([x], rule)
    for sync in (worker.sync_params, lambda: worker.advanced.served().sync([x], timeout_s=60)):
        seen.clear()
        worker.progress(steps=1, epoch=1)
        made += 1
        x += 1
        sync()
        assert set(seen) <= {made - 1}, (rule, made, seen)  # one of two workers makes the outer step
        assert seen or rule == SpiedLocalSGD()
        assert steps_in_the_center() == made, (rule, made)
        worker.barrier("both have looked")
    worker.release_shared_params()
print("all positions seen", flush=True)
