import os

import numpy as np
from deaths_head import die

from platoon_base import ASGD, connect

worker = connect()
x = np.zeros(1000)
if os.environ["SHARES"] == "True":
    worker.init_shared_params([x], ASGD())
    x += 1000
    worker.sync_params()
die()
