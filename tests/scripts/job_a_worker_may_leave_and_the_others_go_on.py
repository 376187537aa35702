import numpy as np
from platoon_base import EASGD, connect

x = np.zeros(100)
with connect() as worker:
    worker.init_shared_params([x], EASGD())
    for step in range(3 if worker.global_rank == 1 else 10):
        worker.sync_params()
    if worker.global_rank != 1:
        worker.barrier()
        assert worker.reduce_metrics({"m": (worker.global_rank + 1.0, 1)}) == {"m": 2.0}
