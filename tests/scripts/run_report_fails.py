"""Synchronizes; rank 1 fails once, and the others go on until it is back."""

from job_preamble import EASGD, np, sys, time, worker

parameters = [np.zeros(10, np.float32)]
worker.init_shared_params(parameters, EASGD())
deadline = time.monotonic() + 60
steps = 0
while time.monotonic() < deadline:
    parameters[0] += 1.0
    steps += 1
    worker.progress(steps=1, loss=1.0 / steps)
    worker.sync_params()
    if worker.global_rank == 1 and steps == 20 and not worker.resume_at.steps:
        sys.exit(3)
    if worker.global_rank == 1 and steps == 50:
        worker.request_stop("rank 1 is back")
    if worker.should_stop:
        break
    time.sleep(0.01)
