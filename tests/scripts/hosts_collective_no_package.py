import sys

import numpy as np
from pretended_hosts import rank, worker

if rank == 2:
    sys.modules["cryptography"] = None
try:
    worker.all_reduce(np.ones(3))
except Exception as exc:
    print("ENDED", type(exc).__name__, exc, flush=True)
worker.close()
