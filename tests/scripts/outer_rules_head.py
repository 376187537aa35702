import sys

import numpy as np
from learned_progress import progress

from platoon_base import connect

x = np.zeros(600_000, "float32")  # two stripes, many blocks
worker = connect()


def learn(step):
    global x
    x += progress(worker.global_rank, step, x.shape, x.dtype)


def save():
    np.savez(f"{sys.argv[1]}/{worker.global_rank}.npz", x)
