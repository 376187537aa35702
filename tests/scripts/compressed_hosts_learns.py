"""Least squares by rounds of local steps; says the loss of the center over the rows of all workers."""

import sys

import numpy as np
from hosts_preamble import rank, say, size, worker

from platoon_base.rules import LocalSGD

random = np.random.default_rng(0)
wanted = random.standard_normal(500).astype("float32")
rows = [random.standard_normal((400, 500)).astype("float32") / 22 for _ in range(size)]
targets = [each @ wanted + np.float32(0.1) * random.standard_normal(400).astype("float32") for each in rows]
own, target = rows[rank], targets[rank]
x = np.zeros(500, "float32")
worker.init_shared_params([x], LocalSGD())
worker.barrier("shared")
for _ in range(int(sys.argv[1])):
    for _ in range(5):
        x -= np.float32(0.3) * (own.T @ (own @ x - target))
    worker.sync_params()
say(float(np.mean([(each @ x - wants) ** 2 for each, wants in zip(rows, targets)])))
worker.barrier("end")
