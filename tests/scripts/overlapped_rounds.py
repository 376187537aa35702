import sys

import numpy as np
from hosts_preamble import rank, say, worker

from platoon_base import rules

rule = eval(sys.argv[1], vars(rules))
x, y = np.zeros(1_200_000, "float32"), np.full((3, 2), 4.0)  # two stripes
worker.init_shared_params([x, y], rule)
worker.barrier("shared")


def tell(what):
    say(what, float(x[0]), float(x[-1]), y.reshape(-1).tolist(), bool((x == x[0]).all()))


for step in range(1, 8):
    x += np.float32(rank + step)
    y += (rank - 1) * step / 8
    worker.sync_params(part=0.5 if step == 3 else 1.0)
    tell(step)
    if step == 5:
        worker.advanced.complete_round()
        tell("completed")
x += np.float32(100 * rank)
if sys.argv[2] == "center_params":
    with worker.center_params():
        tell("center")
else:
    getattr(worker, sys.argv[2])()
    tell(sys.argv[2])
worker.barrier("end")
