import numpy as np
from platoon_base import EASGD, connect

with connect() as worker:
    x = np.full(10, 1.0 + worker.global_rank)
    worker.init_shared_params([x], EASGD())
    assert len(set(x)) == 1
    worker.report({str(worker.global_rank): x[0]})
