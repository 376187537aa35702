"""Rounds whose progress is random; each worker says a hash of what it has after each round.

compressed_hosts_resumed.py RULE FIRST|FILE LAST [ROUND FILE]: no later round before that file is there
compressed_hosts_resumed.py RULE FIRST|FILE LAST ROUND FILE dies: the second worker makes that file and fails
"""

import hashlib
import json
import os
import sys
import time

import numpy as np
from hosts_preamble import rank, say, worker

from platoon_base import rules

rule, last = eval(sys.argv[1], vars(rules)), int(sys.argv[3])
x, y = np.zeros(700_000, "float32"), np.zeros((3, 2))  # two stripes
worker.init_shared_params([x, y], rule)
worker.barrier("shared")


def digest():
    return hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()


if os.path.exists(sys.argv[2]):  # what an earlier run has said: go on behind the round whose values these are
    with open(sys.argv[2]) as file:
        first = 1 + next((step for step, found in json.load(file) if found == digest()), -1)
else:
    first = int(sys.argv[2])
dies = "dies" in sys.argv
for step in range(first, last):
    if dies:
        worker.all_reduce(np.zeros(1, "float32"))  # no worker can go on without the other one
        if rank == 1 and step == int(sys.argv[4]) and not os.path.exists(sys.argv[5]):
            open(sys.argv[5], "x").close()
            os._exit(3)
    elif sys.argv[4:] and step == int(sys.argv[4]):
        deadline = time.monotonic() + 120
        while not os.path.exists(sys.argv[5]):
            assert time.monotonic() < deadline, "no checkpoint was copied"
            time.sleep(0.01)
    x += np.random.default_rng([step, rank]).standard_normal(len(x)).astype("float32")
    y += rank + 1
    worker.sync_params(whole=True)
    say(step, digest())
worker.barrier("end")
