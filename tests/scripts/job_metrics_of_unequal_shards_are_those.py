from job_preamble import np, worker

values = np.random.default_rng(1).lognormal(size=1003)
mine = worker.shard(values)
mean = worker.reduce_metrics({"mean": (mine.sum(), len(mine)), f"only {worker.global_rank}": (1.0, 2)})
worker.report({f"mean {worker.global_rank}": mean["mean"], "names": ",".join(sorted(mean))})
