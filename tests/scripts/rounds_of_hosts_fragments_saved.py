"""A job whose checkpoint is of four fragments is resumed with two."""

import sys

import numpy as np

from platoon_base import connect
from platoon_base.rules import parse_rule

with connect() as worker:
    rank, x = worker.global_rank, np.zeros(64)
    worker.init_shared_params([x], parse_rule(sys.argv[1]))
    worker.barrier("all share")
    assert (x == float(sys.argv[2])).all(), x
    for _ in range(6):
        x += 2 * rank
        worker.progress(steps=1)
        worker.sync_params()
    worker.sync_params(part=0.0, whole=True)
    assert (x == float(sys.argv[2]) + 6).all(), x
