import numpy as np
import time

from hosts_preamble import rank, say, size, worker

worker.barrier("start")
for size_here in (10, 1000, 250_000):
    began = time.monotonic()
    total = worker.all_reduce(np.arange(size_here, dtype="float32") * (rank + 1))
    say(
        "sum",
        size_here,
        bool(np.allclose(total, np.arange(size_here) * (size * (size + 1) / 2))),
        time.monotonic() - began,
    )
