import numpy as np
import os
import sys
import time

from hosts_preamble import say, worker

from platoon_base.rules import EASGD

x = np.zeros(10, "float32")
worker.init_shared_params([x], EASGD())
say("trains")
deadline = time.monotonic() + 60
while not os.path.exists(os.path.join(sys.argv[1], "enough")):
    assert time.monotonic() < deadline
    worker.progress(steps=1)
    worker.sync_params()
    time.sleep(0.01)
