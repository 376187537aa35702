import numpy as np
from hosts_preamble import say, worker

say(float(worker.all_reduce(np.full(100_000, 1.5, "float32"))[0]))
