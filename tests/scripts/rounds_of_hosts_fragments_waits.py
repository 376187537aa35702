"""Rank 0 waits in each of two rounds for more than half of its timeout."""

import time

import numpy as np

from platoon_base import connect
from platoon_base.rules import LocalSGD

with connect() as worker:
    x = np.zeros(64)
    worker.init_shared_params([x], LocalSGD(fragments=2))
    worker.barrier("all share")
    x += 1
    if worker.global_rank == 0:
        worker.sync_params(whole=True, timeout_s=9)
    else:
        for _ in range(2):
            time.sleep(5.5)
            worker.sync_params()
    assert (x == 1).all()
