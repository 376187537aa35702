"""Rounds without an end over slow links; each worker says a hash of what it has after each of them."""

import hashlib
import itertools

import numpy as np
from hosts_preamble import rank, say, worker

from platoon_base.rules import DiLoCo

random = np.random.default_rng(rank)
x = np.zeros(1_000_000, "float32")
worker.init_shared_params([x], DiLoCo(0.7, 0.5))
worker.barrier("shared")
for number in itertools.count(1):
    x += random.standard_normal(len(x)).astype("float32")
    say("begins", number)
    worker.sync_params(timeout_s=60)
    say("ended", number, hashlib.sha256(x.tobytes()).hexdigest())
