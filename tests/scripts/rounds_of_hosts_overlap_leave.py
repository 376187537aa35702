import numpy as np

from platoon_base import connect
from platoon_base.rules import LocalSGD

with connect() as worker:
    x = np.zeros(10)
    worker.init_shared_params([x], LocalSGD(overlap=0.5))
    worker.barrier("all share")
    x += 1 + worker.global_rank
    worker.progress(steps=1)
    worker.sync_params()
