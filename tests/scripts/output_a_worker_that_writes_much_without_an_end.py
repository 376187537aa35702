from job_preamble import sys, worker

if worker.global_rank == 0:
    for _ in range(64):
        sys.stdout.write("x" * 2**20)
    sys.stdout.flush()
worker.barrier()
if worker.global_rank == 1:
    print("still here", flush=True)
    open("fifo").read()
