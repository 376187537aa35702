"""Train two workers by EASGD in a fixed order, up to a number of steps; the checkpoints beside this file are its own.

::

    platoon launch -n 2 --seed 11 --checkpoint-every 1000 --resume FOLDER train.py 6

It uses only what a script of an earlier version could use, so that one file writes with the old version and goes on
with the new.
"""

import json
import sys

import numpy as np

from platoon_base import EASGD, connect

STEPS, PER_EPOCH = int(sys.argv[1]), 4

worker = connect()
rank = worker.global_rank
weights, bias = np.full((2, 3), 8, "float32"), np.arange(4.0)
worker.init_shared_params([weights, bias], EASGD(0.5))
start = worker.resume_at
began = {
    "at": tuple(start),
    "kept": [worker.take_kept(name) for name in ("noise", "schedule")],
    "seed": worker.seed,
    "weights": weights.tolist(),
    "bias": bias.tolist(),
}
print(json.dumps(began), flush=True)
worker.barrier("all began")
for step in range(start.steps, STEPS):
    weights += rank + 1
    bias -= rank + 1
    worker.progress(steps=1, epoch=step // PER_EPOCH + 1)
    for turn in range(2):  # one worker after the other, so that the center is the same in every run
        if turn == rank:
            worker.sync_params()
        worker.barrier("turn")
    worker.keep("noise", [rank, step + 1])
    worker.keep("schedule", {"rate": 0.5 / (step + 1), "name": "é"})
worker.report({"loss": 0.25, "errors": 3, "note": "é"})
worker.barrier("end")
