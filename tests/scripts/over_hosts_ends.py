import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from pretended_hosts import rank, size, worker
from watching import until

from platoon_base.worker import ErrorFeedback

folder, fault, victim, n, first = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
STOP_FOR_A_SECOND = "kill -STOP $0; sleep 1; kill -CONT $0"
FAULTS = {
    "none": lambda: None,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "refused": lambda: worker.all_reduce(np.ones(3, complex)),
    "differs": lambda: worker.all_reduce(np.ones(n + 1, np.float32)),
    "stopped": lambda: subprocess.Popen(["sh", "-c", STOP_FOR_A_SECOND, str(os.getpid())]),
}

kept = {"feedback": ErrorFeedback()} if os.environ["PRETENDED_COMPRESSION"] != "none" else {}
began = time.monotonic()
try:
    # The fault may end this call already on ranks that do not have its result yet.
    worker.all_reduce(np.ones(first, np.float32))
    began = time.monotonic()
    if rank == victim:
        FAULTS[fault]()
    for _ in range(3):
        worker.all_reduce(np.ones(n, np.float32), **kept)
except Exception as exc:
    if rank == victim:
        raise
    print("ENDED", type(exc).__name__, exc, round(time.monotonic() - began, 1), flush=True)
    # Who leaves earlier would be named too, by ranks that have not noticed the fault yet.
    (folder / f"ended{rank}").touch()
    until(lambda: all((folder / f"ended{other}").exists() for other in range(size) if other != victim))
else:
    print("WENT ON", flush=True)
worker.close()
print("CLOSED", round(time.monotonic() - began, 1), flush=True)
