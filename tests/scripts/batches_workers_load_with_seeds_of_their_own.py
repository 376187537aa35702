from job_preamble import load_ahead, np, worker

noise = [x.tolist() for epoch in range(2) for x in load_ahead(lambda: (np.random.rand(2) for _ in range(2)))]
assert len({tuple(x) for x in noise}) == 4
worker.report({f"noise {worker.global_rank}": str(noise)})
