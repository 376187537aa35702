from job_preamble import PlatoonError, np, rank, worker

x = np.ones(1000, "float32")
worker.all_reduce(x)
try:
    if rank == 0:
        worker.all_reduce(x)
    else:
        worker.barrier("epoch")
except PlatoonError as exc:
    if rank == 0:
        worker.report({"said": str(exc)})
