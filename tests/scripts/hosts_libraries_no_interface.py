import numpy as np
from pretended_hosts import rank, worker

if rank == 1:
    import torch.distributed

    def create_device(**kwargs):
        raise RuntimeError("no interface has that address")

    torch.distributed.ProcessGroupGloo.create_device = create_device
try:
    worker.all_reduce(np.ones(3))
except Exception as exc:
    print("ENDED", type(exc).__name__, exc, flush=True)
worker.close()
