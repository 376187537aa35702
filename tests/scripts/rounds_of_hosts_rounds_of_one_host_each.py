import sys

import numpy as np
from hosts_preamble import rank, say, worker

from platoon_base.rules import parse_rule

x = np.zeros(2_000_000, "float32")  # so much that it has not come by the next round
worker.init_shared_params([x], parse_rule(sys.argv[1]))
worker.barrier("all share")
for step in range(4 + rank):
    x += 1 if step < 4 else 100
    worker.sync_params(timeout_s=30)
worker.barrier("the round of rank 1 is over")
if not rank:
    x += 1
    worker.sync_params(timeout_s=30)
worker.barrier("that of rank 0, too")
worker.sync_params(timeout_s=30)
say(x[::500_000].tolist())
