from lasagne_preamble import *

model = Model()
count = theano.shared(np.float32(rank), name="count")
updates = lasagne.updates.sgd(model.loss, model.params, 0.05)
updates[count] = count + 1
updates = sync_updates(updates, model.params, EASGD(), statistics=[count])
assert count.get_value() == 0
count.set_value(np.float32(4 * rank))
evaluate(model.error, X, Y, 5)
assert count.get_value() == 2

# On batches that are all the same, both kinds of statistics decay as in one process, which makes all the steps.
constant = np.full((4, 3), 8, "f4")
mean = model.statistics[0]
mean.set_value(np.zeros(3, "f4"))
own = theano.shared(np.zeros(3, "f4"), name="own")
finish_training()
updates = lasagne.updates.sgd(model.loss, model.params, 0.05)
updates[own] = own - 0.25 * (own - model.x.mean(0))
train = model.compile(sync_updates(updates, model.params, EASGD(), statistics=[own]))
for _ in range(3):
    train(constant, np.zeros(4, "f4"))
np.testing.assert_allclose(mean.get_value(), 8 * (1 - 0.5 ** (3 * size)), rtol=1e-5)
np.testing.assert_allclose(own.get_value(), 8 * (1 - 0.75 ** (3 * size)), rtol=1e-5)
finish_training()
again = Model()
mean = again.statistics[0]
train = again.compile(lasagne.updates.sgd(all_reduce_grads(again.loss, again.params), again.params, 0.05))
train(constant, np.zeros(4, "f4"))
np.testing.assert_allclose(mean.get_value(), 8 * (1 - 0.5**size), rtol=1e-5)

# Counters with an update of their own are the first worker's at the start and at the end, bit for bit.
for averages in (False, True):
    finish_training()
    counted = Model()
    counter = theano.shared(np.int64(2**40 + rank), name="batches")
    counter.default_update = counter + 1
    loss = counted.loss + T.cast(0 * counter, "float32")
    grads = all_reduce_grads(loss, counted.params) if averages else loss
    updates = sync_updates(lasagne.updates.sgd(grads, counted.params, 0.05), counted.params)
    assert counter.get_value() == 2**40 and counter.dtype == "int64"
    train = theano.function([counted.x, counted.y], loss, updates=updates)
    for _ in range(size if averages else 1 + rank):
        train(constant, np.zeros(4, "f4"))
    evaluate(counted.error, X, Y, 5)
    assert counter.get_value() == 2**40 + (size if averages else 1)
