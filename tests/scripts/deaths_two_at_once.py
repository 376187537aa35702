import numpy as np
from deaths_head import die
from watching import exchange_pids

from platoon_base import connect
from platoon_base.errors import WorkerLostError

with connect() as worker:
    pids, x = exchange_pids(worker), np.ones(1000)
    try:
        for step in range(20):
            if step == 7 and worker.global_rank in (0, 2):
                die()
            worker.all_reduce(x)
    except WorkerLostError as error:
        worker.report({str(worker.global_rank): str(error)})
