"""One worker overwrites those of all hosts while all train."""

import numpy as np

from gossip_hosts_head import RULE, rank, say, size, train, worker, x

worker.init_shared_params([x], RULE)
train(50)
if rank == size - 1:
    x[...] = 1000.0
    worker.copy_to_global()
worker.barrier("overwritten")
worker.sync_params()
worker.barrier("all have synchronized")
worker.average_hosts()
worker.copy_to_local()
say(float(np.abs(x - 1000.0).max()))
worker.barrier("end")
