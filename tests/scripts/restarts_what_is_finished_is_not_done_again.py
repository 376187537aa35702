from job_preamble import os, worker

print("starts at", worker.resume_at, flush=True)
worker.advanced.meet("all need each other", binds=True)
if worker.global_rank == 1:
    os.kill(os.getpid(), 9)
