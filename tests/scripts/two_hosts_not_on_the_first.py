import numpy as np
import sys

from hosts_preamble import rank, say, worker

from platoon_base.rules import EASGD, LocalSGD

RULE = {"EASGD": EASGD, "LocalSGD": LocalSGD}[sys.argv[1]]

if rank:
    x = np.full(10, float(rank), "float32")
    worker.init_shared_params([x], RULE())
    say(float(x[0]))
worker.barrier("shared")
if rank:
    worker.sync_params()
    worker.average_hosts()
    say(float(x[0]))
worker.barrier("averaged")
if rank == 0:  # it comes to them later
    x = np.full(10, 9.0, "float32")
    worker.init_shared_params([x], RULE())
    say(float(x[0]))
worker.barrier("end")
