import os
import subprocess
import sys
from platoon_base import connect

if len(sys.argv) > 2:
    connect()
with connect() as worker:
    again = subprocess.run([sys.executable, *sys.argv, "again"], capture_output=True, text=True)
    assert again.returncode == 1
    assert f"rank {worker.global_rank} is taken by process {os.getpid()}" in again.stderr, again.stderr
    assert '__name__ == "__main__"' in again.stderr, again.stderr
