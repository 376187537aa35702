import numpy as np
from pretended_hosts import rank, size, worker

for n in (3, 20_000, 300_001):
    x = np.arange(n, dtype=np.float32) % 100 + rank
    for op, expected in (("sum", x * size + sum(range(size)) - rank * size), ("max", x - rank + size - 1)):
        np.testing.assert_array_equal(worker.all_reduce(x, op), expected)
    sent = [x.copy(), np.full(3, rank)]
    worker.broadcast(sent, root=size - 1)
    np.testing.assert_array_equal(sent[0], x - rank + size - 1)
    np.testing.assert_array_equal(sent[1], [size - 1] * 3)
    worker.barrier()
worker.close()
