from job_preamble import worker

if worker.global_rank == 0:
    for i in range(1000):
        worker.report({"before": i})
worker.barrier()
if worker.global_rank == 1:
    worker.report({"before": "1 was last"})
    for i in range(1000):
        worker.report({"last": i})
