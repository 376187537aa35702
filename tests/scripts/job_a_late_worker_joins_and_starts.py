import os
import subprocess
import sys
import numpy as np
from platoon_base import EASGD, connect

late = "PLATOON_RANK" not in os.environ
x = np.full(1000, 100.0 if late else 3.0)
with connect() as worker:
    worker.init_shared_params([x], EASGD(0.5))
    if late:
        assert (x == 7.0).all(), x
        assert worker.global_rank == 2
        x += 4
        worker.sync_params()  # d = 2
        worker.report({"late": "done"})
    else:
        if worker.global_rank == 0:
            x[:] = 7.0
            worker.copy_to_global()
            environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
            subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
        worker.barrier("joined and gone")
        worker.copy_to_local()
        assert (x == 9.0).all(), x
