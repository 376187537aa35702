import sys
from multiprocessing import Process
from platoon_plugins.blocks import shard_stream
import numpy as np
from fuel.datasets import IndexableDataset
from fuel.schemes import ShuffledScheme
from fuel.server import start_server
from fuel.streams import DataStream, ServerDataStream
from platoon_base import connect

worker = connect()
ports = [int(port) for port in sys.argv[2:]]
servers = []
if worker.global_rank == 0:
    stream = DataStream(IndexableDataset(np.arange(20)), iteration_scheme=ShuffledScheme(20, 3))
    for rank, port in enumerate(ports):
        server = Process(target=start_server, args=(shard_stream(stream, rank=rank, size=2), port))
        server.start()
        servers.append(server)
train = ServerDataStream(("data",), False, port=ports[worker.global_rank])
try:
    for epoch in range(2):
        rows = np.concatenate([data for (data,) in train.get_epoch_iterator()])
        worker.report({f"{epoch} {worker.global_rank}": " ".join(map(str, rows))})
    worker.barrier()
finally:
    for server in servers:
        server.terminate()
        server.join()
