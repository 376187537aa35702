import numpy as np
from deaths_head import die, is_victim, others_wait_in

from platoon_base import ASGD, connect
from platoon_base.errors import WorkerLostError

with connect() as worker:
    x = np.zeros(1000)
    worker.init_shared_params([x], ASGD())
    worker.all_reduce(x)
    if is_victim:
        others_wait_in(worker, "barrier barrier")
        die()
    worker.barrier()
    for attempt in range(3):
        try:
            worker.all_reduce(x, timeout_s=60)
        except WorkerLostError as error:
            assert "rank 1" in str(error), error
        else:
            raise AssertionError("combined without one of them")
    for _ in range(10):
        x += 1
        worker.sync_params()
    worker.barrier()
    worker.copy_to_local()
    worker.report({str(worker.global_rank): x[0]})
