import sys

from watching import rest, until

from platoon_base import connect

moment, then = sys.argv[1:]
worker = connect()
if moment == "late":
    worker.progress(steps=1)
    worker.barrier()
if worker.global_rank == 1:
    raise ValueError("a wrong option")
if moment == "early":
    worker.progress(steps=1)
if then == "rest":
    rest()
until(lambda: worker.gather(1) == [1])
print("to the end")
