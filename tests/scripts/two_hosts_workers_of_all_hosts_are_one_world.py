import numpy as np

from hosts_preamble import rank, say, size, worker

say(rank, size, worker.local_rank, worker.local_size)
worker.barrier("start")
say(worker.gather([rank, "x" * rank]))
say(worker.reduce_metrics({"loss": (float(rank), 1.0)})["loss"])
say(np.asarray(worker.shard(11)).tolist())
say(worker.advanced.sum_arrays("s", [np.arange(3.0) * rank]).arrays[0].tolist())
worker.report({f"by_{rank}": rank})
worker.barrier("end")
