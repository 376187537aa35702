"""A second center comes after the rounds of the first; its first round is of the fragment whose turn it is."""

import numpy as np

from platoon_base import connect
from platoon_base.rules import LocalSGD

with connect() as worker:
    rank = worker.global_rank
    for training in range(3):
        x = np.zeros(64)  # four fragments of 16
        worker.init_shared_params([x], LocalSGD(fragments=4))
        worker.barrier(f"all share {training}")
        for step in range(1, 4):
            x += 2 * rank
            worker.sync_params()
            changed = [f for f in range(4) if x[16 * f] != 2 * rank * step]
            assert len(changed) == step, (training, step, x)
            assert all(x[16 * changed[turn]] in (step, 2 * step, *range(13)) for turn in range(step))
        worker.sync_params(part=0.0, whole=True)
        assert x.tolist() == [3] * 64, x
        worker.barrier(f"all over {training}")
        worker.release_shared_params()
