"""A worker of a job on several hosts, whose couriers are stopped again and again: each step adds 1."""

import os
import sys
import time

import numpy as np

from platoon_base import ASGD, connect

with connect() as worker:
    x = np.zeros(2000)
    worker.init_shared_params([x], ASGD())
    worker.barrier("all share")
    print("begins", flush=True)
    steps = 0
    until_there = sys.argv[1]
    while not worker.should_stop and not os.path.exists(until_there):
        x += 1
        steps += 1
        worker.progress(steps=1)
        worker.sync_params()
        if worker.local_rank == 0 and steps % 50 == 0:
            print("center", time.time(), worker.center_arrays[0][0], flush=True)
        time.sleep(0.02)
    worker.sync_params()
    total = sum(worker.gather(steps))
    hosts = int(sys.argv[2])
    worker.average_hosts()
    worker.copy_to_local()
    print("END", x[0], total / hosts, flush=True)
