"""Linear least squares on sharded data: the center must find the weights that made the targets."""

from lasagne_preamble import *

rng = np.random.RandomState(0)
truth = rng.randn(6, 2)
inputs = rng.randn(600, 6).astype(theano.config.floatX)
targets = inputs.dot(truth).astype(theano.config.floatX)

x, y = T.matrix("x"), T.matrix("y")
network = lasagne.layers.DenseLayer(lasagne.layers.InputLayer((None, 6), x), 2, nonlinearity=None)
params = lasagne.layers.get_all_params(network, trainable=True)
loss = T.sqr(lasagne.layers.get_output(network) - y).mean()
updates = sync_updates(lasagne.updates.momentum(loss, params, 0.02), params, EASGD(), every_n_batches=5)
train, error = theano.function([x, y], loss, updates=updates), theano.function([x, y], loss)

stop = StopOnPatience(3, min_delta=1e-9)
for epoch in range(200):
    for batch in iterate_minibatches(inputs, targets, 20, shuffle=True, epoch=epoch):
        train(*batch)
    if stop(evaluate(error, inputs, targets, 64)):
        break
final = evaluate(error, inputs, targets, 64)
with worker.center_params():
    distance = float(abs(params[0].get_value() - truth).max())
assert epoch < 199 and stop.reason == "no improvement in 3 evaluations"
assert final < 1e-6 and distance < 1e-2, (final, distance)
assert len({tuple(each) for each in worker.gather((final, epoch))}) == 1
assert not worker.should_stop  # the job goes on, the training does not
