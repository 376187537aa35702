import os
import signal

from deaths_head import die, is_victim, others_wait_in
from watching import exchange_pids

from platoon_base import connect

seen = []
with connect() as worker:
    rank = worker.global_rank
    pids = exchange_pids(worker)
    for step in range(30):
        if step == 11 and is_victim:
            others_wait_in(worker, "barrier barrier")
            die()
        if step == 17 and rank == 3:
            os.kill(pids[2], signal.SIGKILL)  # a second one, wherever it is
        worker.barrier()
        seen.append("".join(map(str, worker.advanced.sum_pairs("count", {})[1])))
    worker.report({str(rank): " ".join(seen)})
