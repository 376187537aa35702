from lasagne_preamble import T, all_reduce_grads, lasagne, theano
from gradients_here import labels, mine, rank, rows, say_results, sent_bytes, worker

lasagne.random.set_rng(__import__("numpy").random.RandomState(rank))
x, y = T.fmatrix("x"), T.ivector("y")
network = lasagne.layers.InputLayer((None, 64), x)
for units in (256, 256):
    network = lasagne.layers.DenseLayer(network, units)
network = lasagne.layers.DenseLayer(network, 10, nonlinearity=lasagne.nonlinearities.softmax)
loss = lasagne.objectives.categorical_crossentropy(lasagne.layers.get_output(network), y).mean()
params = lasagne.layers.get_all_params(network, trainable=True)
grads = all_reduce_grads(loss, params, worker=worker)
train = theano.function([x, y], loss, updates=lasagne.updates.momentum(grads, params, 0.1, 0.9))
cost = theano.function([x, y], loss)
before = sent_bytes()
for epoch in range(4):
    a, b = rows[mine], labels[mine]
    for start in range(0, len(a), 48):
        train(a[start : start + 48], b[start : start + 48])
sent = sent_bytes() - before
say_results(cost(rows, labels), [param.get_value() for param in params], sent)
worker.barrier("end")
