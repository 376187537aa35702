import os
import subprocess
import sys
import numpy as np
from platoon_base import connect

with connect() as worker:
    if worker.global_rank == 0:
        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        late = subprocess.Popen([sys.executable, sys.argv[2]], stdin=subprocess.PIPE, env=environment)
    while 2 not in worker.advanced.sum_pairs("n", {})[1]:
        pass
    assert (worker.all_reduce(np.ones(3)) == 2).all()
    if worker.global_rank == 0:
        late.communicate(b"go", timeout=60)
        assert late.returncode == 0
