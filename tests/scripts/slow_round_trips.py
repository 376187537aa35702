import numpy as np
from hosts_preamble import rank, say, worker

x = np.full(1000, float(rank))
worker.init_shared_params([x])
x += rank
worker.sync_params()
worker.average_hosts()
worker.all_reduce(x, "mean")
say("meets")
worker.barrier("end")
