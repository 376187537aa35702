"""A worker of a job that is killed as a whole, again and again, and resumed from its checkpoints.

    platoon launch -n 3 --checkpoint-every 0.1 --resume FOLDER soak_job.py STEPS

Started by benchmarks/soak.py. Each worker adds 1 to all parameters for each step, and synchronizes by ASGD, so every
element of the center counts the steps of all. What a worker finds when it starts it leaves in the center's folder.
"""

import json
import sys
from pathlib import Path

import numpy as np

from platoon_base import ASGD, connect

SHAPES = ((200_003,), (300, 500), (7,))  # several stripes


def main():
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    worker = connect()
    params = [np.zeros(shape) for shape in SHAPES]
    worker.init_shared_params(params, ASGD())
    start = worker.resume_at.steps
    total = worker.advanced.sum_pairs("starts", {"steps": (float(start), 1.0)})[0]["steps"][0]
    if worker.global_rank == 0:  # the others wait below
        center = np.concatenate([param.ravel() for param in params])
        found = {
            "positions": total,
            "lowest": float(center.min()),
            "highest": float(center.max()),
            "whole": bool((center == np.round(center)).all()),
        }
        with open(folder / "found.jsonl", "a") as file:
            file.write(json.dumps(found) + "\n")
    worker.barrier("looked")
    (folder / f"running-{worker.global_rank}").touch()
    for _ in range(start, steps):
        for param in params:
            param += 1
        worker.progress(steps=1)
        worker.sync_params()
        if worker.should_stop:
            return
    worker.advanced.meet("end")
    worker.copy_to_local()
    worker.report({"center": float(params[0].min())})


if __name__ == "__main__":
    main()
