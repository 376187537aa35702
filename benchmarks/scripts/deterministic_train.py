"""Usage: RULE STEPS: steps of some ms on 4 MB of parameters; prints this worker's steps per second."""

import sys
import time

import numpy as np

from platoon_base import connect
from platoon_base.rules import parse_rule

rule, steps = sys.argv[1], int(sys.argv[2])
worker = connect()
w, a = np.zeros(1 << 20, np.float32), np.random.rand(200, 200).astype(np.float32)
if rule != "gradients":
    worker.init_shared_params([w], parse_rule(rule, "the benchmark"))
worker.barrier()
began = time.perf_counter()
for step in range(1, steps + 1):
    for _ in range(4):
        a = np.tanh(a @ a / 200)
    gradient = w * np.float32(0.01) + a[0, 0]
    if rule == "gradients":
        gradient = worker.all_reduce(gradient, "mean")
    w -= gradient
    worker.progress(steps=1)
    if rule != "gradients" and step % 4 == 0:
        worker.sync_params()
seconds = time.perf_counter() - began
worker.barrier()
print(steps / seconds)
