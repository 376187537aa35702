import numpy as np
import os
import sys
import time

from hosts_preamble import rank, say, worker
from platoon_base.rules import DiLoCo

x = np.full(10, 0.0, "float32")
worker.init_shared_params([x], DiLoCo(1.0, 0.0))
say("begins", float(x[0]))
if "AGAIN" not in os.environ:
    worker.barrier("shared")
deadline = time.monotonic() + 60
stop = os.path.join(sys.argv[1], "enough")
while not worker.should_stop:
    if rank == 0 and os.path.exists(stop):
        worker.request_stop("enough")
    assert time.monotonic() < deadline
    before = float(x[0])
    x += np.float32(rank + 1)
    began = time.monotonic()
    worker.sync_params()
    say("round", before, float(x[0]), time.monotonic() - began)
    time.sleep(0.01)
