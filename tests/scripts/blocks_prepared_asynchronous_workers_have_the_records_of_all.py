"""Records at the ends of epochs are those of all workers; what is recorded in between is each worker's own."""

from blocks_preamble import *
import pytest
from blocks.algorithms import UpdatesAlgorithm

cost, error = network()
extensions = [
    DataStreamMonitoring([cost, error], stream(60, seed=1), prefix="valid"),
    TrainingDataMonitoring([cost], prefix="train", after_epoch=True),
    TrainingDataMonitoring([error], prefix="now", after_batch=True),
    FinishAfter(after_n_epochs=3),
]
main_loop = prepare(loop(cost, stream(240, shuffled=True), extensions), strategy=EASGD(), sync_every=4)
assert type(main_loop.extensions[-2]) is TrainingDataMonitoring
main_loop.run()
log = main_loop.log
ends = [log[row]["valid_cost"] for row in (0, *log.status["_epoch_ends"])]
ends += [log[row]["train_cost"] for row in log.status["_epoch_ends"]]
assert len(ends) == 4 + 3
assert (everyones(np.array(ends)) == ends).all()
same_everywhere(main_loop)
assert log.status["iterations_done"] == 3 * 30 / 2

averaging = loop(cost, stream(16), [], AllReduceGradients(Scale(0.1)))
plain = loop(cost, stream(16), [])
trained = loop(cost, stream(16), [])
trained.algorithm.initialize()
other = loop(cost, stream(16), [])
other.algorithm = UpdatesAlgorithm(updates=plain.algorithm.updates)
for call, match in (
    (lambda: prepare(trained, mode="sync"), "initialized algorithm"),
    (lambda: prepare(other, mode="sync"), "UpdatesAlgorithm, which has no gradients"),
    (lambda: prepare(plain, mode="sync", sync_every=2), "got strategy or sync_every"),
    (lambda: prepare(averaging, mode="async"), "without AllReduceGradients"),
    (lambda: prepare(averaging, strategy=EASGD()), "got strategy or sync_every"),
    (lambda: prepare(plain, mode="fast"), "'fast'"),
    (lambda: prepare(plain, sync_every=0), "every_n_batches"),
):
    with pytest.raises(ConfigurationError, match=match):
        call()
plain.epoch_iterator = plain.data_stream.get_epoch_iterator(as_dict=True)
with pytest.raises(ConfigurationError, match="middle of an epoch"):
    prepare(plain)
assert not any(isinstance(each, ParameterSync) for each in [*plain.extensions, *averaging.extensions])
