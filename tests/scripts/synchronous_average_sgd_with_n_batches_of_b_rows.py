import sys
import numpy as np
from platoon_base import connect
from platoon_base.rules.synchronous import average_sgd
from platoon_base.worker import FlatAllReduce

with connect() as worker:
    rng = np.random.RandomState(0)
    data, targets = rng.randn(50, 2, 4, 3), rng.randn(50, 2, 4)
    w, reduce = np.zeros(3), FlatAllReduce(worker)
    for x, y in zip(data[:, worker.global_rank], targets[:, worker.global_rank]):
        gradient = [2 * x.T @ (x @ w - y) / len(x)]
        average_sgd(gradient, reduce)
        w -= 0.05 * gradient[0]
    np.save(f"{sys.argv[1]}/w{worker.global_rank}.npy", w)
