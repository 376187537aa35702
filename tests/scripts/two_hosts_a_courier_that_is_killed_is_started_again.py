import numpy as np
import os
import time

from hosts_preamble import rank, worker

import signal
from platoon_base.rules import EASGD

x = np.zeros(10, "float32")
worker.init_shared_params([x], EASGD())
worker.barrier("shared")


def moved():
    deadline = time.monotonic() + 30
    x[...] = 10 * rank
    before = x.copy()
    while abs(x - before).max() < 1 or worker.gather(float(x[0]))[1 - rank] == 10 * (1 - rank):
        assert time.monotonic() < deadline
        worker.sync_params()


def couriers():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = open(f"/proc/{name}/cmdline").read()
            parent = int(open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if "platoon_base.courier.process" in command and parent == os.getppid():
            found.append(int(name))
    return found


if rank == 1:
    deadline = time.monotonic() + 30
    while not couriers():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (old,) = couriers()
    os.kill(old, signal.SIGKILL)
    while not [pid for pid in couriers() if pid != old]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
worker.barrier("killed")
x[...] = 100 * rank
deadline = time.monotonic() + 30
while not 20 < x[0] < 80:  # no worker of this host is near: the other host has pulled it
    assert time.monotonic() < deadline, x[0]
    worker.sync_params()
    time.sleep(0.01)
worker.barrier("end")
