from job_preamble import ASGD, ConfigurationError, np, rank, sys, worker

run = int(sys.argv[1])
x = np.zeros(3)
worker.init_shared_params([x], ASGD())
before = worker.resume_at.epoch
worker.report({f"run {run}: epochs of rank {rank} before": before})
for epoch in range(before + 1, (3 if run else 1 + rank) + 1):
    worker.shard(np.random.RandomState(epoch).permutation(100))
    x += 1
    worker.progress(steps=1, epoch=epoch)
    worker.sync_params()
worker.barrier("all are here")
try:
    worker.shard(np.random.RandomState(rank).permutation(100).reshape(50, 2))
except ConfigurationError as exc:
    worker.report({f"run {run}: refused": str(exc)})
