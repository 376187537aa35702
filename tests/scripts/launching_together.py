import numpy as np
import os
import socket

from hosts_preamble import rank, say, size, worker

say("place", rank, size, worker.local_rank, worker.local_size, socket.gethostname(), os.environ["HOME"])
worker.barrier("start")
say("gathered", worker.gather([rank, socket.gethostname()]))
say("metrics", worker.reduce_metrics({"loss": (float(rank), 1.0)})["loss"])
say("shard", np.asarray(worker.shard(23)).tolist())
say("sum", worker.advanced.sum_arrays("s", [np.arange(3.0) * rank]).arrays[0].tolist())
worker.report({f"by_{rank}": rank})
worker.barrier("end")
