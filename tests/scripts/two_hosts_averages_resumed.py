import sys

import numpy as np

from hosts_preamble import say, worker

from platoon_base.rules import AveragedEASGD

x, moment = np.zeros(10, "float32"), np.zeros(10, "float32")
worker.init_shared_params([x], AveragedEASGD(scale=None), moments=[moment])
worker.barrier("shared")
if sys.argv[1] == "train":
    for _ in range(30):
        x += 1
        moment[:] = 2
        worker.progress(steps=1)
        worker.sync_params()
    worker.barrier("trained")
    worker.average_hosts()
center = worker.center_arrays
worker.copy_to_local()
say(float(center[0][0]), float(x[0]), float(center[1][0]), float(moment[0]))
worker.barrier("end")
