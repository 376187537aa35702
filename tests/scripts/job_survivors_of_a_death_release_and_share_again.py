import os
import signal
import sys
import numpy as np
from platoon_base import ASGD, EASGD, connect
from platoon_base.channels.client import ControlClient

with connect() as worker:
    rank = worker.global_rank
    x, y = np.zeros(1000), np.full(77, 3.0, "float32")
    worker.init_shared_params([x], EASGD(0.5))
    worker.barrier("all share")
    if rank == 1:
        if sys.argv[2] == "while it shares":
            os.kill(os.getpid(), signal.SIGKILL)
        ControlClient.wait_for_all = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    for step in range(20):
        worker.sync_params()
    worker.release_shared_params()
    worker.init_shared_params([y, x], ASGD())
    worker.barrier("survivors share")
    y += 10**rank
    worker.sync_params()
    worker.barrier("survivors trained")
    worker.copy_to_local()
    assert (y == 3 + 1 + 100).all(), np.unique(y)
    worker.report({str(rank): "ok"})
