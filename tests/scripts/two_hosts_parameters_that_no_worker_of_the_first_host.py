import numpy as np

from hosts_preamble import rank, worker

from platoon_base.rules import EASGD

if rank:
    worker.init_shared_params([np.zeros(10, "float32")], EASGD())
worker.barrier("shared")
