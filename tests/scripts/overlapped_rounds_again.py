"""Rank 1 dies while a round is under way, and comes again and contributes before the others have completed it."""

import os
import signal
from pathlib import Path

import numpy as np
from hosts_preamble import rank, say, worker
from watching import until, waits_in

from platoon_base.rules import LocalSGD

x = np.zeros(10)
again = rank == 1 and Path("died").exists()
worker.init_shared_params([x], LocalSGD(overlap=0.5))
if again:
    Path("again").touch()
    x += 100
else:
    worker.barrier("all share")
    x += 1
    worker.sync_params(timeout_s=20)
    if rank == 1:
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    until(Path("again").exists)
    if rank == 0:
        until(lambda: waits_in("synchronization round", 1))
    x += 1
worker.sync_params(timeout_s=30)
worker.advanced.complete_round(timeout_s=20)
say(x[0])
worker.barrier("end")
