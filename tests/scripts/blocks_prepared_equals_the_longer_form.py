"""By averaged gradients, which repeat bit by bit: the same parameters and records from the same first values."""

from blocks_preamble import (
    AllReduceGradients,
    DistributedMonitoring,
    DistributedTrainingMonitoring,
    ParameterSync,
    Scale,
    StopTogether,
    loop,
    network,
    np,
    rank,
    shard_stream,
    stream,
    values,
)
from blocks_preamble import DataStreamMonitoring, FinishAfter, TrainingDataMonitoring
from platoon_plugins.blocks import prepare


def monitors(of_streams, of_training, cost, error):
    found = of_streams([cost, error], stream(60, seed=1), prefix="valid", after_epoch=True)
    return [found, of_training([cost], prefix="train", after_batch=True)]


def longer():
    cost, error = network()
    extensions = monitors(DistributedMonitoring, DistributedTrainingMonitoring, cost, error)
    extensions += [ParameterSync(), StopTogether(), FinishAfter(after_n_epochs=2)]
    train = shard_stream(stream(100, shuffled=True), uneven="drop")
    return loop(cost, train, extensions, AllReduceGradients(Scale(0.1)))


def one_line():
    cost, error = network(seed=1 + 7 * rank)  # the first worker's values hold
    extensions = [*monitors(DataStreamMonitoring, TrainingDataMonitoring, cost, error), FinishAfter(after_n_epochs=2)]
    main_loop = loop(cost, stream(100, shuffled=True), extensions, AllReduceGradients(Scale(0.1)))
    assert prepare(main_loop, mode="sync") is main_loop
    assert prepare(main_loop).data_stream is main_loop.data_stream  # a second call changes nothing
    assert len(main_loop.extensions) == 5
    return main_loop


made = []
for make in (longer, one_line):
    np.random.seed(5)
    main_loop = make()
    main_loop.run()
    made.append(main_loop)
first, second = made
np.testing.assert_array_equal(values(first), values(second))
rows = [{number: dict(row) for number, row in each.log.items()} for each in made]
assert list(rows[0]) == list(rows[1])
compared = 0
for number, row in rows[0].items():
    for name, value in row.items():
        if name.startswith(("valid_", "train_")):
            np.testing.assert_array_equal(rows[1][number][name], value, err_msg=f"{number}, {name}")
            compared += 1
assert compared >= 2 * 3 + 10, compared
