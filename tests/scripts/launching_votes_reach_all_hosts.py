import time

from hosts_preamble import rank, worker

worker.advanced.stop_votes.open(1)
worker.barrier("open")
if rank == 2:
    worker.advanced.stop_votes.cast()
deadline = time.monotonic() + 30
while worker.advanced.stop_votes.voters() != {2}:
    assert time.monotonic() < deadline
    time.sleep(0.001)
worker.barrier("end")
