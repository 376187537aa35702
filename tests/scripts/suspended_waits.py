"""Waits of every kind, each for much less than the job is stopped for."""

from job_preamble import SharedData, load_ahead, np, sys, time, worker


def batches():
    for number in range(60):
        time.sleep(0.05)
        yield np.full(3, number)


def values():
    print("loading", flush=True)
    time.sleep(1)
    return np.arange(3.0)


w = np.zeros(1000)
worker.init_shared_params([w])
worker.barrier("all")
print("go", flush=True)
for _ in range(20):
    w += 0.001
    worker.progress(steps=1)
    worker.sync_params()
    worker.all_reduce(w, "mean")
    worker.gather(worker.global_rank)
    time.sleep(0.05)
read = sum(1 for _ in load_ahead(batches(), timeout_s=float(sys.argv[1])))
shared = SharedData(values, "values", timeout_s=float(sys.argv[1])).array
worker.barrier("end")
print("END", read, shared.tolist(), flush=True)
