from pathlib import Path

import numpy as np
from hosts_preamble import rank, say, worker
from watching import until

from platoon_base.errors import CollectiveTimeoutError
from platoon_base.rules import LocalSGD

x = np.zeros(10)
worker.init_shared_params([x], LocalSGD(overlap=0.5))
worker.barrier("all share")
say("shared")
until(lambda: Path("stopped").exists())
x += 1 + rank
worker.sync_params(timeout_s=20)  # the mean is 1.5, and not known yet
x += 1
say("went on", x[0])
worker.barrier("both went on")
own = x.copy()
try:
    worker.advanced.complete_round(timeout_s=0.2)
except CollectiveTimeoutError:
    say("waited")
assert (x == own).all()
until(lambda: Path("continued").exists())
worker.advanced.complete_round(timeout_s=20)
say(x[0])
worker.barrier("end")
