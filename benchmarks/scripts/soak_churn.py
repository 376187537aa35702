"""A worker of a job whose workers are killed and started again while it trains: a linear model at a steady pace.

    platoon launch -n 4 --max-restarts 1000 soak_churn.py FOLDER

Started by benchmarks/churn.py. A step takes a fixed time, as one on a device does, so a worker that is away loses steps
that no other worker makes. `count` adds 1 to each element for each step of all workers.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from platoon_base import ASGD, connect

STEP_S = 0.02
FEATURES, ROWS, LEARNING_RATE = 50, 32, 0.002
TARGET = 0.05  # distance to the solution, relative to that at the start
COUNTED = 200_003  # elements: several stripes


def main():
    folder = Path(sys.argv[1])
    worker = connect()
    rank = worker.global_rank
    solution = np.random.default_rng(0).standard_normal(FEATURES)
    model, count = np.zeros(FEATURES), np.zeros(COUNTED)
    worker.init_shared_params([model, count], ASGD())
    step = worker.resume_at.steps
    began = folder / f"began-{rank}"
    began.with_suffix(".tmp").write_text(str(os.getpid()))
    began.with_suffix(".tmp").rename(began)
    deadline = time.monotonic()
    while not ((folder / "over").exists() or worker.should_stop):
        rng = np.random.default_rng([rank, step])  # a step that is done again sees the same rows
        x = rng.standard_normal((ROWS, FEATURES))
        y = x @ solution + 0.1 * rng.standard_normal(ROWS)
        model -= LEARNING_RATE * x.T @ (x @ model - y) / ROWS
        count += 1
        step += 1
        worker.progress(steps=1)
        worker.sync_params()
        if np.linalg.norm(model - solution) <= TARGET * np.linalg.norm(solution):
            (folder / "reached").touch()
        deadline = max(deadline + STEP_S, time.monotonic() - STEP_S)  # what a pause has cost is not caught up with
        time.sleep(max(0.0, deadline - time.monotonic()))
    worker.advanced.meet("over")
    worker.copy_to_local()
    worker.report({f"steps of rank {rank}": step, "lowest": float(count.min()), "highest": float(count.max())})


if __name__ == "__main__":
    main()
