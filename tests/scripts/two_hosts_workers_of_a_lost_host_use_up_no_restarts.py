import os
import sys
import time

from hosts_preamble import rank, say, worker

mark = os.path.join(sys.argv[1], "failed")
say("runs")
while not os.path.exists(os.path.join(sys.argv[1], "enough")):
    worker.progress(steps=1)
    if rank == 0 and os.path.exists(os.path.join(sys.argv[1], "fail")) and not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(3)
    time.sleep(0.01)
