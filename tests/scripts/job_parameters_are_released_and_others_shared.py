import os
import numpy as np
from platoon_base import ASGD, EASGD, connect

with connect() as worker:
    rank = worker.global_rank
    worker.release_shared_params()
    x, y = np.full(1000, 2.0), np.full((700, 1001), 5.0, "float32")
    worker.init_shared_params([x], EASGD(0.5))
    if rank == 0:
        x += 4
        worker.sync_params()  # d = 2
        assert (x == 4).all()
    worker.barrier("synchronized")
    worker.copy_to_local()
    assert (x == 4).all()
    worker.release_shared_params()
    assert not worker.advanced.shares
    job = os.path.basename(os.environ["PLATOON_JOB"])
    assert not [name for name in os.listdir("/dev/shm") if job in name and name.endswith("-center")]
    worker.barrier("seen")
    x += rank
    for fold in range(5):
        y[:] = 5
        worker.init_shared_params([y, np.ones(fold + 1)][: fold % 2 + 1], ASGD())
        assert (y == 5).all()
        worker.barrier("all start from the first values")
        for step in range(3):
            y += 2**rank
            worker.sync_params()
        worker.barrier("trained")
        worker.copy_to_local()
        assert (y == 5 + 3 * (1 + 2 + 4)).all(), np.unique(y)
        worker.release_shared_params()
    assert (x == 4 + rank).all(), "what was released is nobody else's"
    worker.report({str(rank): "ok"})
