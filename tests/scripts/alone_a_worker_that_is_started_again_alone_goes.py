from job_preamble import EASGD, np, os, worker

x = np.zeros(10)
worker.init_shared_params([x], EASGD())
for step in range(worker.resume_at.steps, 40):
    x += step
    worker.progress(steps=1)
    if step % 4 == 3:
        worker.sync_params()
    if step == 22 and not worker.late:
        os.kill(os.getpid(), 9)
assert (x == sum(range(40))).all(), x
