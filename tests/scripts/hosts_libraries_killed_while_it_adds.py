import signal

import numpy as np
from pretended_hosts import rank, worker

worker.all_reduce(np.ones(2_000_000, np.float32))
from platoon_base.collectives.hosts_libraries import LIBRARIES

if rank == 1:
    LIBRARIES["gloo"].begin_sum = lambda self, array: signal.raise_signal(signal.SIGKILL)
try:
    worker.all_reduce(np.ones(2_000_000, np.float32))
except Exception as exc:
    print("ENDED", type(exc).__name__, exc, flush=True)
worker.close()
