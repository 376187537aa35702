import numpy as np
import time

from hosts_preamble import say, worker

say(worker.all_reduce(np.ones(3)).tolist())
while True:
    worker.all_reduce(np.ones(3))
    worker.progress(steps=1)
    time.sleep(0.005)
