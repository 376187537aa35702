from job_preamble import ASGD, np, os, worker
import psutil

own = psutil.Process(os.getppid()).memory_full_info().uss  # without what is shared with others
print("launcher", own, flush=True)
x = np.zeros(int(os.environ["NUMBERS"]))
worker.init_shared_params([x], ASGD())
assert len(x) == 1 or x[0] == 3 or not worker.resume_at.steps
x += 3
worker.progress(steps=1, epoch=1)
worker.sync_params()
