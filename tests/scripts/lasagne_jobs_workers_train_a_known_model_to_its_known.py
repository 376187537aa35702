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
worker.report(
    {
        f"error {rank}": final,
        f"distance {rank}": distance,
        f"epoch {rank}": epoch,
        f"reason {rank}": stop.reason,
    }
)
