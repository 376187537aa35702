import os
import subprocess
import sys

from gossip_head import RULE, mine, save, synchronize, take_turns, turns, worker, x
from watching import living, until

late = "PLATOON_RANK" not in os.environ
with worker:
    worker.init_shared_params(x, RULE)
    if late:
        for turn in mine(turns(3)):
            synchronize(turn)
        save()
    else:
        worker.barrier("all here")
        take_turns(turns(2))
        if worker.global_rank == 0:
            environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
            subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
        worker.barrier("the late one has gone")
        until(lambda: living() == 2)
        take_turns(turns(4))
        save()
