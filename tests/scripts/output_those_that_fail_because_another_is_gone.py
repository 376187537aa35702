import os
import signal
from platoon_base import connect

worker = connect()
worker.barrier()
if worker.global_rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
worker.barrier("never")
