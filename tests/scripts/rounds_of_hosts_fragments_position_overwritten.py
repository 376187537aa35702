"""Where the center is overwritten, the position is that of what it has."""

import numpy as np
from watching import position

from platoon_base import connect
from platoon_base.rules import LocalSGD

with connect() as worker:
    rank, x = worker.global_rank, np.zeros(64)  # four fragments of 16
    worker.init_shared_params([x], LocalSGD(fragments=4))
    worker.barrier("all share")
    expected = 6
    for step in range(1, 13):
        if step == 7:
            worker.barrier("trained")
            if rank == 0:
                worker.copy_to_global()
                worker.copy_to_local()  # which drops nothing
            worker.barrier("overwritten")
            if rank == 1:
                worker.copy_to_local()
            worker.barrier("copied")
            assert position(rank).steps == 6, position(rank)
        x += 1
        worker.progress(steps=1)
        worker.sync_params()
        expected = max(expected, step - 3)
        assert step < 7 or position(rank).steps == expected, (step, position(rank))
