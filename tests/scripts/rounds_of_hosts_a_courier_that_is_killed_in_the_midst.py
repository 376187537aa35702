import numpy as np
import os

from hosts_preamble import rank, say, worker
from platoon_base.rules import DiLoCo

import signal
import subprocess

x = np.full(200_000, 0.0, "float32")
worker.init_shared_params([x], DiLoCo(1.0, 0.0))
worker.barrier("shared")
launcher = os.getppid()
for step in range(60):
    if step % 20 == 10 and rank == 1:
        found = subprocess.run(["pgrep", "-P", str(launcher), "-f", "courier.process"], capture_output=True)
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
    x += np.float32(rank)
    worker.sync_params()
    say(float(x[0]), bool((x == x[0]).all()))
worker.barrier("end")
