import json
import os
import subprocess
import sys

import numpy as np

from platoon_base import ASGD, EASGD, GoSGD, connect  # noqa: F401 - for the text of the rule

late = "PLATOON_RANK" not in os.environ
late_value, own_value, center = json.loads(sys.argv[3])
x = np.full(1000, 100.0 if late else 3.0)
with connect() as worker:
    worker.init_shared_params([x], eval(sys.argv[2]))
    if late:
        assert (x == 5.0).all(), x
        x += 4
        worker.sync_params()
        np.testing.assert_allclose(x, late_value)
    else:
        x += 2
        worker.sync_params()
        assert (x == 5.0).all()
        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
        x += 1
        worker.sync_params()
        np.testing.assert_allclose(x, own_value)
        with worker.center_params():
            np.testing.assert_allclose(x, center)
        worker.copy_to_local()
        np.testing.assert_allclose(x, center)
