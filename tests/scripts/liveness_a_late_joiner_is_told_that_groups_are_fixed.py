import os
import subprocess
import sys
from platoon_base import connect

with connect() as worker:
    if worker.global_rank == 0:
        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        subprocess.run([sys.executable, sys.argv[2]], env=environment, check=True, timeout=60)
    worker.barrier()
