import os
import subprocess
import sys

import numpy as np

from platoon_base import EASGD, connect
from platoon_base.errors import NonFiniteError

policy = sys.argv[2]
late = "PLATOON_RANK" not in os.environ
x = np.zeros(1000, "float32")
with connect() as worker:
    worker.init_shared_params([x], EASGD(), on_nonfinite=policy)
    if late:
        assert x[3] == 0 and (np.delete(x, 3) == 1).all(), x
    else:
        x += 1
        x[3] = np.nan
        try:
            worker.sync_params()
        except NonFiniteError as exc:
            assert "element 3 of parameter 0" in str(exc)
        else:
            assert policy != "raise"
        assert x[3] == 0 if policy == "restore" else np.isnan(x[3])
        assert (np.delete(x, 3) == 1).all()
        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
