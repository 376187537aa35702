from job_preamble import rest, sys, until, worker

moment, then = sys.argv[1:]
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
