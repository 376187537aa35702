import numpy as np

from blocks_dealt_model import Batch, ConstantScheme, DataStream, IterableDataset, OrderedDict, examples
from blocks_preamble import EASGD, FinishAfter, ParameterSync, Scale, loop, network, rank, shard_stream


def own():
    rng = np.random.RandomState(rank)

    class Drawn:
        def __init__(self):
            self.rng = rng

        def __iter__(self):
            return iter(rng.normal(size=(16, 6)).astype("float32"))

    rows = OrderedDict([("features", Drawn()), ("targets", [[0]] * 16)])
    return Batch(DataStream(IterableDataset(rows)), ConstantScheme(8))


for train in (examples(), shard_stream(examples()), own(), shard_stream(examples(), mode="broadcast")):
    loop(network()[0], train, [ParameterSync(EASGD()), FinishAfter(after_n_batches=1)], Scale(0.0)).run()
