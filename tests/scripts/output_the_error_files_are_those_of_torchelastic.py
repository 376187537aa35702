from job_preamble import worker

worker.barrier()
if worker.global_rank == 1:
    raise RuntimeError("the reason why")
