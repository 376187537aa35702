from job_preamble import FOLDER, WorkerLostError, exchange_pids, np, os, rank, signal, sys
from job_preamble import takes_part, until, worker
from deaths_head import VICTIM, die, is_victim

STEP, MOMENT, SIZE = int(sys.argv[4]), sys.argv[5], int(sys.argv[6])
x = np.ones(SIZE, "float32")
pids = exchange_pids(worker)
killer = (VICTIM + 1) % 3
try:
    for step in range(60):
        if step == STEP and MOMENT == "between calls" and is_victim:
            die()
        if step == STEP and MOMENT == "while it waits" and rank == killer:
            until(lambda: (FOLDER / "inside").exists())
            os.kill(pids[VICTIM], signal.SIGUSR1)
            until(lambda: not takes_part(VICTIM))
        if step == STEP and MOMENT == "anywhere" and rank == killer:
            os.kill(pids[VICTIM], signal.SIGUSR1)
        if step == STEP and MOMENT == "while it waits" and is_victim:
            (FOLDER / "inside").touch()
        result = worker.all_reduce(x, timeout_s=60)
        assert (result == 3).all(), result
except WorkerLostError as error:
    if is_victim:
        raise
    worker.report({f"{rank}": str(error), f"step {rank}": step})
