import numpy as np

from lasagne_preamble import T, finish_training, rank, sync_updates, theano

from platoon_plugins.lasagne import LocalSGD

w = theano.shared(np.zeros(3, "f4"), name="w")
updates = sync_updates({w: w + np.float32(1 + rank)}, [w], LocalSGD(overlap=0.5), every_n_batches=4)
train = theano.function([], T.sum(w), updates=updates)
own = 1 + rank
found = []
for _ in range(9):
    train()
    found.append(float(w.get_value()[0]))
# After 4 steps the workers contribute 4 and 8, and after 6 they take over the mean, 6, and go on from there.
assert found == [own, 2 * own, 3 * own, 4 * own, 5 * own, *(6 + n * own for n in (2, 3, 4, 5))], found
finish_training()
# What came after the 4 steps: 5 by each worker, 7.5 on average, on top of 6.
assert w.get_value().tolist() == [13.5] * 3, w.get_value()
