import sys

import numpy as np
from pretended_hosts import rank, worker

backend, package = sys.argv[2:]
if rank >= 1:
    sys.modules[package] = None
else:  # which may be missing here too
    from platoon_base.collectives import hosts_libraries

    class IsThere:
        port = 0

        def __init__(self, *about):
            pass

        def close(self, failed):
            pass

    hosts_libraries.LIBRARIES[backend] = IsThere
try:
    worker.all_reduce(np.ones(3))
except Exception as exc:
    print("ENDED", type(exc).__name__, exc, flush=True)
worker.close()
