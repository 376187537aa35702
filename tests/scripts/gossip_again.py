import os
import signal

from gossip_head import FOLDER, RULE, mine, save, synchronize, take_turns, turns, worker, x
from watching import await_file

again = (FOLDER / "first1.npz").exists()
worker.init_shared_params(x, RULE)
if again:
    for turn in mine(turns(3)):
        synchronize(turn)
    save()
    worker.close()
    (FOLDER / "has left").touch()
else:
    worker.barrier("all here")
    take_turns(turns(2))
    if worker.global_rank == 1:
        save("first")
        os.kill(os.getpid(), signal.SIGKILL)
    await_file(FOLDER / "has left")
    take_turns(turns(4))
    save()
    worker.close()
