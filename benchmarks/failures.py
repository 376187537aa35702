"""How soon the failure of one worker is on the launcher's output.

From the moment in which rank 1 of two raises an exception to the moment in which its first line is read from the
launcher's pipe; the other worker waits for it in a barrier.

    python benchmarks/failures.py [--jobs 20]
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

SCRIPT = """
import sys, time
from platoon_base import connect
worker = connect()
worker.barrier()
if worker.global_rank:
    open(sys.argv[1], "w").write(repr(time.time()))
    raise ValueError("no such file")
worker.barrier()
"""
GOAL_S = 1.0


def run():
    with tempfile.TemporaryDirectory() as folder:
        script, raised = Path(folder, "train.py"), Path(folder, "raised")
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "platoon_base", "launch", "-n", "2", "--log-dir", f"{folder}/logs"]
        command += [str(script), str(raised)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
            for line in launcher.stdout or ():
                if line.startswith("worker 1 failed: ValueError"):
                    return time.time() - float(raised.read_text())
    raise SystemExit("the job ended without a line on the failure: FAILED")


def measure():
    options = harness.options(__doc__, jobs=20)
    seconds = [run() for _ in range(2 if options.quick else options.jobs)]
    print(f"median {harness.median(seconds):.3f} s, largest {max(seconds):.3f} s")
    harness.goal("a worker's failure on the launcher's output, s, the largest", max(seconds), GOAL_S, at_least=False)
    harness.save("failures", {"seconds": seconds}, options)


if __name__ == "__main__":
    harness.main(measure)
