from job_preamble import os, signal, worker

worker.advanced.meet("all are here")
if worker.global_rank == 1:
    while 0 in worker.advanced.meet("who is left"):  # the first one leaves with status 0
        pass
    os.kill(os.getpid(), signal.SIGKILL)
