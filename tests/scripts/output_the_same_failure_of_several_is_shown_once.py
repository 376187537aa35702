from job_preamble import worker

worker.barrier()
raise ValueError(f"worker {worker.global_rank} has a bad file")
