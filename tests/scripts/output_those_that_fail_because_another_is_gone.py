from job_preamble import os, signal, worker

worker.barrier()
if worker.global_rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
worker.barrier("never")
