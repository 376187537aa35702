import os
import signal
import sys

from center_momentum_head import CenterMomentum, save, take_turns, turns, worker, x
from watching import living, until

with worker:
    worker.init_shared_params(x, CenterMomentum())
    worker.barrier("all here")
    take_turns(turns(2))
    save()
    if worker.global_rank == 2:
        if sys.argv[4] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        worker.close()
        raise SystemExit
    until(lambda: living() == 2)
    worker.barrier("two are left")
    take_turns(turns(3))
    save()
