import time

from hosts_preamble import rank, say, worker

worker.advanced.stop_votes.open(1)
worker.barrier("open")
if rank == 2:
    worker.advanced.stop_votes.cast()
deadline = time.monotonic() + 30
while worker.advanced.stop_votes.voters() != {2}:
    assert time.monotonic() < deadline
    time.sleep(0.001)
say("voted")
worker.barrier("voted")
if rank == 1:
    worker.request_stop("rank 1 has enough")
while not worker.should_stop:
    assert time.monotonic() < deadline
    worker.progress(steps=1)
    time.sleep(0.001)
say(worker.stop_reason)
