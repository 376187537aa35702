from job_preamble import np, sys, worker
from learned_progress import progress

x = np.zeros(600_000, "float32")  # two stripes, many blocks


def learn(step):
    global x
    x += progress(worker.global_rank, step, x.shape, x.dtype)


def save():
    np.savez(f"{sys.argv[1]}/{worker.global_rank}.npz", x)
