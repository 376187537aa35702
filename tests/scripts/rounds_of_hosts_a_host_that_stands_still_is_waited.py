import numpy as np
import time

from hosts_preamble import say, worker
from platoon_base.rules import LocalSGD

x = np.full(10, 0.0, "float32")
worker.init_shared_params([x], LocalSGD())
worker.barrier("shared")
say("trains")
for step in range(200):
    x += 1
    worker.sync_params(timeout_s=30)
    time.sleep(0.01)
say(float(x[0]))
worker.barrier("end")
