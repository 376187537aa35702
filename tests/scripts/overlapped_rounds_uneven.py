"""Ranks 0 and 2 make a round without rank 1; then rank 1 contributes while that round is under way on its host."""

import numpy as np
from hosts_preamble import rank, say, worker
from watching import until, waits_in

from platoon_base.rules import LocalSGD

x = np.zeros(10)
worker.init_shared_params([x], LocalSGD(overlap=0.5))
worker.barrier("all share")
x += 1
worker.sync_params(timeout_s=20)
if rank != 1:
    x += 1
    worker.sync_params(timeout_s=20)
worker.barrier("an epoch")
if rank == 0:
    until(lambda: waits_in("synchronization round", 1))
x += 1 + 100 * (rank == 1)  # what rank 1 has learned from the old center is left out
worker.sync_params(timeout_s=20)
worker.advanced.complete_round(timeout_s=20)
say(x[0])
worker.barrier("end")
