"""By averaged gradients, which repeat bit by bit: the same parameters and records from the same first values."""

from blocks_preamble import *


def monitors(of_streams, of_training, cost, error):
    found = of_streams([cost, error], stream(60, seed=1), prefix="valid", after_epoch=True)
    return [found, of_training([cost], prefix="train", after_batch=True)]


def longer():
    cost, error = network()
    extensions = monitors(DistributedMonitoring, DistributedTrainingMonitoring, cost, error)
    extensions += [ParameterSync(), StopTogether(), FinishAfter(after_n_epochs=2)]
    train = shard_stream(stream(100, shuffled=True), uneven="drop")
    return norms_monitored(loop(cost, train, extensions, AllReduceGradients(rule())))


def rule():
    return CompositeRule([StepClipping(0.5), Momentum(0.1, 0.9)])


def norms_monitored(main_loop):
    norms = [main_loop.algorithm.total_step_norm, main_loop.algorithm.total_gradient_norm]
    kind = DistributedTrainingMonitoring if isinstance(main_loop.extensions[0], DistributedMonitoring) else None
    main_loop.extensions.insert(1, (kind or TrainingDataMonitoring)(norms, prefix="train", after_batch=True))
    return main_loop


def one_line():
    cost, error = network(seed=1 + 7 * rank)  # the first worker's values hold
    extensions = [*monitors(DataStreamMonitoring, TrainingDataMonitoring, cost, error), FinishAfter(after_n_epochs=2)]
    main_loop = norms_monitored(loop(cost, stream(100, shuffled=True), extensions, AllReduceGradients(rule())))
    return prepared(main_loop)


def one_line_alone():
    """The step rule is that of one process: `prepare` makes it average gradients."""
    cost, error = network(seed=1 + 7 * rank)
    extensions = [*monitors(DataStreamMonitoring, TrainingDataMonitoring, cost, error), FinishAfter(after_n_epochs=2)]
    return prepared(norms_monitored(loop(cost, stream(100, shuffled=True), extensions, rule())))


def prepared(main_loop):
    assert prepare(main_loop, mode="sync") is main_loop
    assert prepare(main_loop, mode="sync").data_stream is main_loop.data_stream  # a second call changes nothing
    assert len(main_loop.extensions) == 6
    return main_loop


made = []
for make in (longer, one_line, one_line_alone):
    np.random.seed(5)
    main_loop = make()
    main_loop.run()
    made.append(main_loop)
first, *others = made
for each in others:
    np.testing.assert_array_equal(values(first), values(each))
rows = [{number: dict(row) for number, row in each.log.items()} for each in made]
assert list(rows[0]) == list(rows[1]) == list(rows[2])
compared = 0
for number, row in rows[0].items():
    for name, value in row.items():
        if name.startswith(("valid_", "train_")):
            for each in rows[1:]:
                rounding = 1e-6 if "norm" in name else 0  # Theano may add up the squares in another order
                np.testing.assert_allclose(
                    each[number][name], value, rtol=rounding, err_msg=f"{number}, {name}, {rows.index(each)}"
                )
            compared += 1
assert compared >= 2 * 3 + 3 * 10, compared
