"""A worker of synchronous training, of which one is killed at a random moment; the others tell what they were told.

    platoon launch -n 4 soak_sync.py FOLDER SEED

Started by benchmarks/soak.py. Each worker combines an array with those of the others, over and over.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from platoon_base import connect
from platoon_base.errors import WorkerLostError

LATEST_S = 0.4  # after all have begun


def kill_later(pid, moment, folder):
    """Kill a process after ``moment`` seconds, and note when."""
    time.sleep(moment)
    (folder / "killed").write_text(str(time.monotonic()))
    os.kill(pid, signal.SIGKILL)


def main():
    folder, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    worker = connect()
    rank, size = worker.global_rank, worker.global_size
    victim, moment, elements = rng.randrange(size), rng.uniform(0, LATEST_S), rng.choice([3, 5_000, 300_000])
    pids = dict(worker.gather([rank, os.getpid()]))
    if rank == (victim + 1) % size:
        threading.Thread(target=kill_later, args=(pids[victim], moment, folder), daemon=True).start()
    array = np.ones(elements, "float32")
    try:
        while True:
            assert (worker.all_reduce(array) == size).all()
    except WorkerLostError as error:
        told = {"at": time.monotonic(), "text": str(error), "victim": victim}
        (folder / f"told-{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
