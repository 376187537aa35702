from job_preamble import sys, worker

policy, voters = sys.argv[2], [int(v) for v in sys.argv[3].split()]
assert not worker.should_stop
worker.barrier()
if worker.global_rank in voters:
    worker.request_stop("enough", policy=policy)
worker.barrier()
assert worker.should_stop
assert worker.stop_reason == "enough"
