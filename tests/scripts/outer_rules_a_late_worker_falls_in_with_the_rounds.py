import os
import subprocess
import sys
import numpy as np
from platoon_base import LocalSGD, connect

late = "PLATOON_RANK" not in os.environ
x = np.zeros(700_000)
with connect() as worker:
    worker.init_shared_params([x], LocalSGD())
    if late:
        x += 3
        worker.sync_params()
        for _ in range(5):
            before = x.copy()
            x += 3
            worker.sync_params()
            np.testing.assert_allclose(x - before, 2)
        worker.report({"late": "done"})
    else:
        for _ in range(3):
            x += 1
            worker.sync_params()
        np.testing.assert_allclose(x, 3)
        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        other = subprocess.Popen([sys.executable, *sys.argv], env=environment)
        while other.poll() is None:
            x += 1
            worker.sync_params()
        assert other.returncode == 0
        before = x.copy()
        x += 1
        worker.sync_params()
        np.testing.assert_allclose(x - before, 1)
