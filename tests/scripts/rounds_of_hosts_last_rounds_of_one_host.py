"""Rank 0 makes the last rounds alone; `average_hosts` waits until the other host has the center of the last one."""

import sys

import numpy as np
from hosts_preamble import rank, say, worker

from platoon_base.rules import parse_rule

x = np.zeros(4_000_000, "float32")  # so much that it has not come by the next call
worker.init_shared_params([x], parse_rule(sys.argv[1]))
for _ in range(2 if rank else 4):
    x += 1
    worker.sync_params(timeout_s=30)
worker.barrier("the rounds are over")
worker.average_hosts(timeout_s=30)
with worker.center_params():
    say(x[::500_000].tolist())
