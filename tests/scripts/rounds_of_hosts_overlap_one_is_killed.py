import os
import signal

import numpy as np
from watching import ending, until

from platoon_base import connect
from platoon_base.rules import LocalSGD

with connect() as worker:
    rank, x = worker.global_rank, np.zeros(10)
    worker.init_shared_params([x], LocalSGD(overlap=0.5))
    worker.barrier("all share")
    x += 3 * rank
    worker.sync_params()  # the mean is 3
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    until(lambda: ending(2))
    x += 3 + rank
    worker.sync_params()  # 6.5: the mean of what the others have learned since, on top of 3
    worker.advanced.complete_round()
    worker.report({f"x {rank}": x[0]})
