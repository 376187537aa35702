"""Rank 1 dies within a round, after its contribution, and comes again; rank 2 is on another host."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
from hosts_preamble import rank, say, worker
from watching import until, waits_in

from platoon_base.rules import parse_rule

x = np.zeros(64)  # four fragments of 16
again = rank == 1 and Path("died").exists()
worker.init_shared_params([x], parse_rule(sys.argv[1]))
if again:
    Path("again").touch()
else:
    worker.barrier("all share")
    for step in range(6):
        x += 1
        if rank == 1 and step == 5:
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        worker.sync_params(timeout_s=30)
    until(Path("again").exists)
    if rank == 0:
        until(lambda: waits_in("synchronization round", 1))
for _ in range(5):
    x += 1
    worker.sync_params(timeout_s=30)
worker.sync_params(part=0.0, whole=True, timeout_s=30)
worker.barrier("whole")  # who makes a round more makes it alone
worker.average_hosts()
worker.copy_to_local()
say(*x[::16], len(set(x.tolist())) <= 4)
worker.barrier("end")
