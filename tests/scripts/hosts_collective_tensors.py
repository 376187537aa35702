from pretended_hosts import rank, size, worker

import torch

x = torch.full((1000,), float(rank))
assert (worker.all_reduce(x) == sum(range(size))).all()
worker.close()
