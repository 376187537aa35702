import numpy as np

from platoon_base import connect
from platoon_base.rules import LocalSGD

with connect() as worker:
    x = np.zeros(10)
    worker.init_shared_params([x], LocalSGD(overlap=0.5))
    worker.barrier("all share")
    x += 1 + worker.global_rank
    worker.sync_params()
    x += 1
    worker.barrier("both contributed")
    worker.copy_to_local()
    copied = float(x[0])
    worker.barrier("both copied")
    worker.sync_params(whole=True)
    worker.report({f"x {worker.global_rank}": float(x[0]), f"copied {worker.global_rank}": copied})
