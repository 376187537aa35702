"""Two workers that average arrays; the script measures itself what it loads, exchanges and validates.

"within" are times within a phase, and "around" those around it.
"""

from job_preamble import np, rank, sys, time, worker

LOAD_S = (0.004, 0.03)  # of each rank
STEPS = 40
NAMES = ("loading within", "loading around", "validation within", "validation around", "exchange around")
spent = dict.fromkeys(NAMES, 0.0)


def batches(rank, count):
    """Make batches, slowly."""
    for number in range(count):
        began = time.perf_counter()
        time.sleep(LOAD_S[rank])
        spent["loading within"] += time.perf_counter() - began
        yield number


def timed(loaded):
    """Yield batches, and measure the time around each."""
    while True:
        began = time.perf_counter()
        batch = next(loaded, None)
        spent["loading around"] += time.perf_counter() - began
        if batch is None:
            return
        yield batch


gradient = np.ones(1000, np.float32)
worker.all_reduce(gradient, dest=gradient)
worker.progress(steps=1, loss=1.0)
for batch in timed(worker.loading(batches(rank, STEPS))):
    time.sleep(0.005)
    began = time.perf_counter()
    worker.all_reduce(gradient, "mean", dest=gradient)
    spent["exchange around"] += time.perf_counter() - began
    worker.progress(steps=1, epoch=batch // 10, loss=1.0 / (batch + 2))
before = time.perf_counter()
with worker.validating():
    began = time.perf_counter()
    time.sleep(0.2)
    spent["validation within"] += time.perf_counter() - began
spent["validation around"] += time.perf_counter() - before
worker.report({f"{name} {rank}": seconds for name, seconds in spent.items()})
worker.report({"val_loss": 0.5} if rank == 0 else {"train_loss": 0.25})
worker.report({"<b>&": 1.0})
sys.stdout.flush()
