import json
import os
import sys
import time

from hosts_preamble import rank, say, worker

worker.barrier("start")
say("meets")
step = 0
while not worker.should_stop:
    began = time.monotonic()
    worker.progress(steps=1)
    found = worker.gather(rank)
    step += 1
    if rank == 0:
        path = os.path.join(sys.argv[1], "steps")
        with open(path + ".new", "w") as file:
            json.dump([step, found], file)
        os.replace(path + ".new", path)
    if time.monotonic() - began > 0.3:
        say("stalled", time.monotonic() - began)
    time.sleep(0.01)
say("stops", step, worker.stop_reason)
