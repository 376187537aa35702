"""A worker that is killed at a random moment, unless it is the first, which kills the others and looks at what is left.

    platoon launch -n 4 soak_worker.py FOLDER SEED

Started by benchmarks/soak.py. Each worker adds 1 to all parameters and synchronizes by ASGD, over and over, with a
collective call now and then. Every element of the center counts the steps of all workers: each that a worker has
finished, and for each worker that was killed at most one that it has not.
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

from platoon_base import ASGD, connect
from platoon_base.job.files import JobFiles
from platoon_base.shm.job_state import JobState
from platoon_base.shm.segments import Segment
from platoon_base.system.environment import MAX_WORKERS

SHAPES = ((200_003,), (300, 500), (7,))  # several stripes
SYNCS = 10  # between two collective calls
LATEST_S = 0.4  # after all have begun


def kill_all(pids, seed, killed):
    """Kill processes one after the other at random moments, and note when."""
    rng = random.Random(seed)
    ranks = list(pids)
    rng.shuffle(ranks)
    for rank in ranks:
        time.sleep(rng.uniform(0, LATEST_S))
        killed[rank] = time.monotonic()
        os.kill(pids[rank], signal.SIGKILL)


def main():
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    worker = connect()
    rank, size = worker.global_rank, worker.global_size
    params = [np.zeros(shape) for shape in SHAPES]
    worker.init_shared_params(params, ASGD())
    pids = dict(worker.gather([rank, os.getpid()]))
    del pids[0]
    killed, noticed = {}, {}
    if rank == 0:
        threading.Thread(target=kill_all, args=(pids, seed, killed), daemon=True).start()
    present = list(range(size))
    while present != [0]:
        for _ in range(SYNCS):
            for param in params:
                param += 1
            worker.sync_params()
            worker.progress(steps=1)
        worker.reduce_metrics({"first": (float(params[0][0]), 1.0)})
        left = worker.advanced.meet("all who are left")
        for gone in set(present) - set(left):
            noticed[gone] = time.monotonic()
        present = left
    worker.copy_to_local()
    center = np.concatenate([param.ravel() for param in params])
    with Segment.attach(JobFiles.read(os.environ["PLATOON_JOB"]).job_state) as segment:
        job_state = JobState(segment.buffer, rows=MAX_WORKERS, create=False)
        finished = sum(job_state.progress(other).steps for other in range(size))
    result = {
        "kills": len(killed),
        "finished_steps": finished,
        "lowest": float(center.min()),
        "highest": float(center.max()),
        "whole": bool((center == np.round(center)).all()),  # false for anything that is not finite
        "noticed_s": max(noticed[other] - killed[other] for other in killed),
    }
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
