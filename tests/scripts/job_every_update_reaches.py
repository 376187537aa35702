from job_preamble import ASGD, np, worker

x = np.full(700_001, 5.0, "float32")
worker.init_shared_params([x], ASGD())
for step in range(25):
    x += 2**worker.global_rank
    worker.sync_params()
worker.barrier()
worker.copy_to_local()
assert (x == 5 + 25 * (2**worker.global_size - 1)).all(), np.unique(x)
worker.report({f"rank {worker.global_rank}": "ok"})
