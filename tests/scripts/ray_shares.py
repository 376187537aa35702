import numpy as np
import time

from hosts_preamble import say, worker

from platoon_base.rules import EASGD

x = np.full(10, 7.0, "float32")
worker.init_shared_params([x], EASGD())
say("meets", float(x[0]))
x[...] = 3.0
while not worker.should_stop:
    worker.progress(steps=1)
    worker.sync_params()
    time.sleep(0.01)
