import time

import numpy as np
from pretended_hosts import rank, size, worker

for late_s in np.linspace(0.09, 0.2, 12):
    if rank == 0:
        time.sleep(late_s)
    assert (worker.all_reduce(np.full(10, rank, np.float32)) == sum(range(size))).all()
    assert (worker.all_reduce(np.full(200_000, rank, np.float32)) == sum(range(size))).all()
worker.close()
