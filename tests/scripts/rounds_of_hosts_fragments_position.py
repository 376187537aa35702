"""A job that goes on from the center has to train again what one of its fragments does not have."""

import sys

import numpy as np
from watching import position

from platoon_base import connect
from platoon_base.rules import parse_rule

with connect() as worker:
    rank, x = worker.global_rank, np.zeros(64)  # four fragments of 16
    worker.init_shared_params([x], parse_rule(sys.argv[2]))
    worker.barrier("all share")
    for step in range(1, 22):
        x += 1
        worker.progress(steps=1)
        if step % 2 == 0:
            worker.sync_params(whole=step == 16)
        worker.barrier(f"after step {step}")
        (center,) = worker.center_arrays
        assert position(rank).steps == center.min(), (step, position(rank), center)
        assert step != 16 or (center == 16).all()
        assert step < 12 or step - center.min() <= 10
        worker.barrier(f"seen step {step}")
