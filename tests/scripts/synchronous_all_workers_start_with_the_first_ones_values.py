import sys
import numpy as np
from platoon_base import connect
from platoon_base.worker import start_together

with connect() as worker:
    rank = worker.global_rank
    odd = np.asfortranarray(np.arange(6.0).reshape(2, 3)) + rank
    params = [np.full(3, rank + 1, "f4"), odd, np.array(rank + 0.1), np.full((), np.nan if rank else -0.0)]
    start_together(params, worker)
    np.savez(f"{sys.argv[1]}/{rank}.npz", *params)
