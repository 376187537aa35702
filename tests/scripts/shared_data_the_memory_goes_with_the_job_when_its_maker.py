import numpy as np
import os
import signal

from shared_data_preamble import names, rows, worker
from platoon_base.data import SharedData

data = SharedData(rows, "x")
worker.barrier()
if data.made_here:
    os.kill(os.getpid(), signal.SIGKILL)
np.testing.assert_array_equal(data.excerpt([5, 6]), rows[[5, 6]])
print("read", names())
