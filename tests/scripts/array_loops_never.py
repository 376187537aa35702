"""A loop that reads a prepared loader, and never averages or synchronizes."""

from job_preamble import connect, np, sys, time
from platoon_base.array_loops import batches, prepare
from platoon_base.worker_process import apart

apart.AFTER_S = 1.0
w = prepare(np.zeros(3), mode=sys.argv[2])
for row in batches(600, 1):
    time.sleep(0.01)
    w -= 0.1 * row.mean()
connect().barrier()
