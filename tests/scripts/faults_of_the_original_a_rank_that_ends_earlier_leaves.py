from job_preamble import WorkerLostError, np, worker

try:
    for _ in range(5 - worker.global_rank):
        worker.all_reduce(np.ones(3), timeout_s=60)
except WorkerLostError as error:
    assert worker.global_rank == 0 and "rank 1" in str(error), error
else:
    assert worker.global_rank == 1
