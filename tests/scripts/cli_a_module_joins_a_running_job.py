import os
import subprocess
import sys
from platoon_base import connect

with connect() as worker:
    job = os.path.basename(os.environ["PLATOON_JOB"])
    command = [sys.executable, "-m", "platoon_base", "join", job, "-m", "package.inner.train", "-m", "x"]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
