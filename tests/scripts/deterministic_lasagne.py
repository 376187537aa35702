"""Usage: MODE: an unseeded Lasagne script with dropout and shuffles, by a rule or with averaged gradients."""

from job_preamble import EASGD, hashlib, np, sys, worker
import lasagne
import theano
import theano.tensor as T
from lasagne.layers import DenseLayer, DropoutLayer, InputLayer
from platoon_plugins.lasagne import all_reduce_grads, finish_training, iterate_minibatches, sync_updates

mode = sys.argv[1]
x = np.random.standard_normal((96, 6)).astype(theano.config.floatX)
y = (x[:, 0] > 0).astype("int32")
inputs, targets = T.matrix(), T.ivector()
hidden = DropoutLayer(DenseLayer(InputLayer((None, 6), inputs), 8), 0.3)
network = DenseLayer(hidden, 2, nonlinearity=lasagne.nonlinearities.softmax)
loss = lasagne.objectives.categorical_crossentropy(lasagne.layers.get_output(network), targets).mean()
params = lasagne.layers.get_all_params(network, trainable=True)
if mode == "gradients":
    updates = sync_updates(lasagne.updates.sgd(all_reduce_grads(loss, params), params, 0.1), params, None)
else:
    updates = sync_updates(lasagne.updates.sgd(loss, params, 0.1), params, EASGD(0.4), every_n_batches=2)
train = theano.function([inputs, targets], loss, updates=updates)
for epoch in range(1, 4):
    for rows in iterate_minibatches(x, y, batch_size=8, shuffle=True, epoch=epoch):
        train(*rows)
finish_training()
weights = b"".join(np.ascontiguousarray(each.get_value()).tobytes() for each in params)
print(f"bits of rank {worker.global_rank}: {hashlib.sha256(weights).hexdigest()}", flush=True)
