"""A job that goes on from the center has to train again what the center does not have."""

import numpy as np
from watching import position

from platoon_base import connect
from platoon_base.rules import LocalSGD

with connect() as worker:
    rank, x = worker.global_rank, np.zeros(2)
    worker.init_shared_params([x], LocalSGD(overlap=0.5))
    worker.barrier("all share")
    for step in range(1, 12):
        x += 1
        worker.progress(steps=1)
        if step % 4 == 0:
            worker.sync_params()
        if step % 4 == 2:
            worker.advanced.complete_round()
        worker.barrier(f"after step {step}")
        (center,) = worker.center_arrays
        assert position(rank).steps == center[0] == max(0, (step - 2) // 4 * 4), (step, position(rank), center)
        worker.barrier(f"seen step {step}")
