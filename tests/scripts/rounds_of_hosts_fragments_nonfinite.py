"""A NaN is kept out of its fragment's round, and found in no other."""

import numpy as np

from platoon_base import connect
from platoon_base.rules import DiLoCo

with connect() as worker:
    rank, x = worker.global_rank, np.zeros(64)  # four fragments of 16
    worker.init_shared_params([x], DiLoCo(1.0, 0.0, overlap=0.2, fragments=4), on_nonfinite="restore")
    worker.barrier("all share")
    for step in range(1, 9):
        x += 1
        if rank == 0 and step == 2:
            x[40] = np.nan
        worker.sync_params()
        assert np.isfinite(x).all() == (rank == 1 or not 2 <= step < 3), (step, x)
    worker.sync_params(part=0.0, whole=True)
    worker.report({f"x {rank}": float(x.sum()), f"least {rank}": float(x.min())})
