"""Rank 1 is interrupted while the center that it has made waits for the first values, which rank 0 has."""

import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
from hosts_preamble import rank, say, worker
from watching import until


def interrupt():
    until(Path(sys.argv[1]).exists)  # the log of the courier, which is started once there is a center
    os.kill(os.getpid(), signal.SIGINT)


if rank:
    threading.Thread(target=interrupt).start()
    try:
        worker.init_shared_params([np.zeros(3)])
    except KeyboardInterrupt:
        say("interrupted")
    Path("over").touch()
else:
    until(Path("over").exists)
    worker.init_shared_params([np.zeros(3)])
    worker.sync_params()
