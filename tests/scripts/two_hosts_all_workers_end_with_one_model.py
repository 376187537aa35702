import numpy as np

from hosts_preamble import rank, say, worker

from platoon_base.rules import EASGD

x = np.full(50_000, float(rank), "float32")
worker.init_shared_params([x], EASGD(0.5))
for step in range(20):
    x += np.random.default_rng([rank, step]).normal(size=x.shape).astype("float32")
    worker.sync_params()
worker.barrier("trained")
worker.average_hosts()
worker.copy_to_local()
say(x.tobytes().hex()[:2000], float(x.sum()))
worker.barrier("end")
