import time

from hosts_preamble import say, worker

worker.barrier("start")
say("goes on")
steps, last = 0, time.monotonic()
while not worker.should_stop:
    steps += 1
    worker.progress(steps=1)
    now = time.monotonic()
    if now - last > 0.3:
        say("stalled", now - last)
    last = now
    time.sleep(0.01)
say("stops", worker.stop_reason)
