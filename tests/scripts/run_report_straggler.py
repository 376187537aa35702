"""Averages arrays until a file appears; one worker takes 200 ms longer in each step, in the phase that is given."""

from job_preamble import Path, np, sys, time, worker

SLOW_S = 0.2
slow_rank, phase, over = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])


def batches(worker):
    """Yield batches for as long as the test wants some, at most a minute."""
    deadline = time.monotonic() + 60
    while not worker.agree_to_stop():
        if over.exists() or time.monotonic() > deadline:
            worker.request_stop("the test has seen enough")
        if worker.global_rank == slow_rank and phase == "loading":
            time.sleep(SLOW_S)  # the injected failure
        yield 0


gradient = np.ones(1000, np.float32)
for _ in worker.loading(batches(worker)):
    if worker.global_rank == slow_rank and phase == "compute":
        time.sleep(SLOW_S)  # the injected failure
    time.sleep(0.002)
    worker.all_reduce(gradient, "mean", dest=gradient)
    worker.progress(steps=1)
    if worker.global_rank == 0 and worker.resume_at.steps == 0:
        print("a step", flush=True)
