import sys

from blocks_preamble import AllReduceGradients, Checkpoint, ComputationGraph, DistributedTrainingMonitoring, FinishAfter
from blocks_preamble import ParameterSync, Scale, aggregation, loop, network, shard_stream, stream, tmp

from blocks.serialization import load

if len(sys.argv) > 2:
    with open(tmp + "/loop.tar", "rb") as file:
        main_loop = load(file)
    main_loop.run()
    # Of the 12 batches of the epoch, those after batch 4 of each worker, and the first worker's before.
    assert main_loop.log[6]["train_rows"].tolist() == 8 * [8], main_loop.log[6]
else:
    cost, error = network()
    (x,) = [v for v in ComputationGraph(cost).inputs if v.name == "features"]
    rows = aggregation.concatenate(x.shape[0].copy("rows"))
    saving = Checkpoint(tmp + "/loop.tar", after_n_batches=4, after_training=False)
    monitoring = DistributedTrainingMonitoring([rows], prefix="train", after_epoch=True)
    extensions = [ParameterSync(None), monitoring, saving, FinishAfter(after_n_epochs=1)]
    loop(cost, shard_stream(stream(96), uneven="drop"), extensions, AllReduceGradients(Scale(0.1))).run()
