import os
import signal
import sys

from gossip_head import FOLDER, RULE, save, take_turns, turns, worker, x
from watching import await_file, living, until

with worker:
    worker.init_shared_params(x, RULE)
    worker.barrier("all here")
    take_turns(turns(2))
    save()
    if worker.global_rank == 2:
        if sys.argv[4] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        worker.close()
        (FOLDER / "has left").touch()
        raise SystemExit
    if sys.argv[4] == "leaves":
        await_file(FOLDER / "has left")  # its weight has been given to another by then
    until(lambda: living() == 2)
    worker.barrier("two are left")
    take_turns(turns(3))
    save()
