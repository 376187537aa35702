import numpy as np
import os
import signal
import sys
import time

from signals_preamble import ASGD, FOLDER, connect, exchange_pids, is_stopped, progress, tell, until

worker = connect()
rank, x = worker.global_rank, np.zeros(100_000)


BY = sys.argv[2]
worker.init_shared_params([x], ASGD())
pids = exchange_pids(worker)
syncs = lambda other: progress(other).syncs


def step():
    global x
    x += 10**rank
    worker.sync_params()


for _ in range(10):
    step()
if rank == 1:
    if BY == "itself":
        os.kill(os.getpid(), signal.SIGSTOP)
    while not (FOLDER / "continued").exists():
        step()
        time.sleep(0)
else:
    if rank == 0:
        if BY == "another":
            os.kill(pids[1], signal.SIGSTOP)
        until(lambda: is_stopped(pids[1]))
        tell("is stopped")
    until((FOLDER / "is stopped").exists)
    before = syncs(1)
    for _ in range(30):
        step()
    assert is_stopped(pids[1]) or (FOLDER / "continued").exists()
    if rank == 0:
        until(lambda: syncs(2) >= 40)
        assert syncs(1) == before and syncs(0) == 40
        tell("continued")
        os.kill(pids[1], signal.SIGCONT)
while syncs(rank) < 200:
    step()
mine = syncs(rank)
total = worker.advanced.sum_pairs("syncs", {"n": (mine * 10.0**rank, 1)})[0]["n"][0]
worker.sync_params()  # what was left out for the stopped one is caught up with
worker.barrier()
worker.copy_to_local()
assert (x == total).all(), (np.unique(x), total)
worker.report({str(rank): mine})
