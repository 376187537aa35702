from job_preamble import ASGD, connect, exchange_pids, is_stopped, np, os, progress, signal, until


class Stops(ASGD):
    kernel = None if os.environ["PLATOON_RANK"] == "0" else "asgd"

    def sync(self, *arrays):
        global stopped
        if not stopped:
            stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        super().sync(*arrays)


worker, stopped = connect(), False
x = np.zeros(3_000_000)
worker.init_shared_params([x], Stops())
pids = exchange_pids(worker)
if worker.global_rank == 0:
    worker.sync_params()
    assert stopped
else:
    try:
        until(lambda: is_stopped(pids[0]))
        for _ in range(100):
            x += 1
            worker.sync_params()
        with worker.center_params():  # reads it without waiting for ever
            held = x == 0
            assert 0 < held.sum() < x.size and (x[~held] >= 100).all(), (held.sum(), np.unique(x))
        if worker.global_rank == 1:
            until(lambda: progress(2).syncs == 100)
    finally:
        if worker.global_rank == 1:
            os.kill(pids[0], signal.SIGCONT)
worker.barrier("all go on")
worker.sync_params()
worker.barrier("all have synchronized")
worker.copy_to_local()
assert (x == 200).all(), (x.min(), x.max())
