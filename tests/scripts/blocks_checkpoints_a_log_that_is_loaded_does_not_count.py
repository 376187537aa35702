from blocks_preamble import Checkpoint, ComputationGraph, DistributedTrainingMonitoring, EASGD, FinishAfter, Load
from blocks_preamble import ParameterSync, aggregation, loop, network, shard_stream, stream, tmp, worker

first = loop(
    network()[0],
    shard_stream(stream(64)),
    [ParameterSync(EASGD()), FinishAfter(after_n_epochs=1), Checkpoint(tmp + "/first.tar")],
)
first.run()
worker.barrier("saved")
cost, _ = network()
(x,) = [v for v in ComputationGraph(cost).inputs if v.name == "features"]
each = aggregation.concatenate(x.mean(axis=0).copy("each"))
monitoring = DistributedTrainingMonitoring([cost, each], prefix="train", every_n_batches=2)
loading = Load(tmp + "/first.tar", load_log=True)
extensions = [ParameterSync(EASGD()), monitoring, loading, FinishAfter(after_n_batches=6)]
second = loop(cost, shard_stream(stream(64)), extensions)
second.run()
assert second.status["iterations_done"] == 6
# Batches 5 and 6 of each worker.
assert second.log[6]["train_each"].shape == (4, 6)
