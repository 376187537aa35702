import os
import signal
import sys

import numpy as np
from hosts_preamble import rank, say, size, worker
from platoon_base.collectives.hosts_libraries import MpiHosts

victim = [int(word) for word in sys.argv[1:]]
added, begin = [], MpiHosts.begin_sum
MpiHosts.begin_sum = lambda self, array: added.append(array.size) or begin(self, array)
for n in (1000, 1_000_000):
    for step in range(3):
        if [rank, n, step] == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        found = worker.all_reduce(np.full(n, rank, np.float32), "mean")
        assert (found == (size - 1) / 2).all()
say("added by MPI", *added)
worker.close()
