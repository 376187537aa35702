"""The step of the first round overflows; whoever makes it takes the center over again."""

import numpy as np
from watching import until, waits_in

from platoon_base import connect
from platoon_base.rules import DiLoCo

with connect() as worker:
    rank = worker.global_rank
    x = np.zeros(2, "float32")
    worker.init_shared_params([x], DiLoCo(4.0, 0.0, overlap=0.5), on_nonfinite="restore")
    worker.barrier("all share")
    if rank == 0:
        x[0] = 2e38
    x[1] += 1
    worker.sync_params()
    if rank:
        until(lambda: waits_in("synchronization round", 0))
    x[1] += 1
    worker.sync_params()
    worker.barrier("both contributed")
    worker.advanced.complete_round()
    own = x.copy()
    with worker.center_params():
        assert (own == x).all(), (own, x)
    worker.report({f"x {rank}": float(own[1])})
