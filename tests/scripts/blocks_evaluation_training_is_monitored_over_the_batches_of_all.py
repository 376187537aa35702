"""The learning rate is 0: so it does not matter in which order one process sees the same batches."""

from blocks_preamble import *
from blocks_evaluation_monitored import *


def run(train, extension, ours):
    cost, error = network()
    variables = [v for v in monitored(cost) if v.name not in ("last", "each", "norm")]
    rule = AllReduceGradients(Scale(0.0)) if ours == "averaged" else Scale(0.0)
    extra = [ParameterSync(EASGD(), every_n_batches=2)] if ours == "rule" else []
    main_loop = trained(
        cost,
        train,
        [extension(variables, prefix="train", after_epoch=True), *extra, FinishAfter(after_n_epochs=2)],
        rule,
    )
    return [records(main_loop.log[row], "train") for row in main_loop.status["_epoch_ends"]]


expected = run(stream(72), TrainingDataMonitoring, None)
for ours in ("averaged", "rule"):
    rows = run(shard_stream(stream(72), uneven="drop"), DistributedTrainingMonitoring, ours)
    for got, one in zip(rows, expected):
        got["products"][0] = one["products"][0]  # other workers' batches come behind one's own
        compare(got, one, 3e-6)
    packed = np.array([rows[1]["cost"], rows[0]["smallest"]])
    assert (everyones(packed) == packed).all()
