import numpy as np

from lasagne_preamble import EASGD, Model, X, Y, evaluate, lasagne, rank, sync_updates, theano

model = Model()
count = theano.shared(np.float32(rank), name="count")
updates = lasagne.updates.sgd(model.loss, model.params, 0.05)
updates[count] = count + 1
updates = sync_updates(updates, model.params, EASGD(), statistics=[count])
assert count.get_value() == 0
count.set_value(np.float32(4 * rank))
evaluate(model.error, X, Y, 5)
assert count.get_value() == 2
