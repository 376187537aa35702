from job_preamble import join_late, sys, worker

if worker.global_rank == 0:
    join_late(sys.argv[2])
worker.barrier()
