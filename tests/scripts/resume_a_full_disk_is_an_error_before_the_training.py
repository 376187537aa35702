import numpy as np
from platoon_base import EASGD, connect

worker = connect()
worker.init_shared_params([np.random.standard_normal(1_000_000)], EASGD())
while not worker.should_stop:
    worker.progress(steps=1)
    worker.sync_params()
