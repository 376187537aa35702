from job_preamble import exchange_pids, os, rank, signal, worker
from deaths_head import die, is_victim, others_wait_in

seen = []
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
