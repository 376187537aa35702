from job_preamble import connect, worker

assert connect() is worker
assert (worker.global_size, worker.local_size, worker.seed) == (3, 3, 42)
assert worker.local_rank == worker.global_rank
worker.report({str(worker.global_rank): worker.shard_seed})
