import numpy as np
import sys
import time

from hosts_preamble import say, worker
from platoon_base.errors import PlatoonError

from platoon_base.rules import EASGD

x = np.zeros(10, "float32")
worker.init_shared_params([x], EASGD())
say(float(x[0]), worker.resume_at.steps if hasattr(worker, "resume_at") else 0)
worker.barrier("shared")
if len(sys.argv) > 1:
    sys.exit()
x += 3
try:
    while True:
        worker.progress(steps=1)
        worker.sync_params()
        worker.barrier("again", timeout_s=30)
        say("trains")
        time.sleep(0.05)
except PlatoonError:
    pass
