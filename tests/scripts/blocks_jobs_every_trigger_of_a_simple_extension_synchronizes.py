"""In two epochs of four batches, EASGD by itself every four; at the end of training it is done once more."""

from blocks_preamble import *
from platoon_base.worker.shared_parameters import SharedParameters

calls = []
original = SharedParameters.sync
SharedParameters.sync = lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
expected = [
    (dict(), 2),
    (dict(after_batch=True), 8),
    (dict(before_batch=True), 8),
    (dict(every_n_batches=3), 2),
    (dict(after_n_batches=3), 1),
    (dict(after_epoch=True), 2),
    (dict(before_epoch=True), 2),
    (dict(every_n_epochs=2), 1),
    (dict(after_n_epochs=1), 1),
    (dict(every_n_batches=4, after_training=True), 2),
    (dict(every_n_batches=4, before_first_epoch=True), 3),
]
cost, error = network()
for triggers, count in expected:
    extensions = [ParameterSync(EASGD(), **triggers), FinishAfter(after_n_epochs=2)]
    loop(cost, shard_stream(stream(64)), extensions, Scale(0.0)).run()
    assert len(calls) == count + 1, (triggers, calls)
    calls.clear()
