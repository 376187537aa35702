"""Both forms train one model after the other; rounds of LocalSGD and averaged gradients repeat bit by bit."""

from lasagne_preamble import *
import pytest
from platoon_base import LocalSGD

adam = lasagne.updates.adam


def trained(updates_of):
    model = Model()
    train = model.compile(updates_of(model))
    for k in range(4):
        part = slice(6 * k + 3 * rank, 6 * k + 3 * rank + 3)
        train(X[part], Y[part])
    finish_training()
    return model.values(model.params)


pairs = [
    (
        lambda m: adam(all_reduce_grads(m.loss, m.params), m.params, 0.1, beta1=0.5),
        lambda m: prepare(adam, m.loss, m.params, 0.1, mode="sync", beta1=0.5),
    ),
    (
        lambda m: sync_updates(adam(m.loss, m.params, 0.1), m.params, LocalSGD(), 2),
        lambda m: prepare(adam, m.loss, m.params, learning_rate=0.1, strategy=LocalSGD(), sync_every=2),
    ),
]
ends = []
for pair in pairs:
    longer, one = map(trained, pair)
    for mine, right in zip(one, longer):
        np.testing.assert_array_equal(mine, right)
    ends.append(one)
assert size == 2
assert any((a != b).any() for a, b in zip(*ends))  # the two modes differ

model = Model()
with pytest.raises(ConfigurationError, match="pass the function"):
    prepare(adam(model.loss, model.params), model.loss, model.params)
for words, match in (({"mode": "fast"}, "'fast'"), ({"mode": "sync", "sync_every": 2}, "do not use")):
    with pytest.raises(ConfigurationError, match=match):
        prepare(adam, model.loss, model.params, **words)
