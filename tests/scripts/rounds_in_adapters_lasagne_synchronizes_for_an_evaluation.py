import numpy as np

from lasagne_preamble import T, X, Y, evaluate, finish_training, lasagne, rank, size, sync_updates, theano

from platoon_plugins.lasagne import EASGD

w = theano.shared(np.zeros(3, "f4"), name="w")
x, y = T.fmatrix("x"), T.fvector("y")
loss = T.sqr(T.dot(x, w) - y).mean()
updates = sync_updates(lasagne.updates.sgd(loss, [w], 0.05), [w], EASGD(), every_n_batches=2)
train = theano.function([x, y], loss, updates=updates)
moved = []
for steps in (5, 0, 0, 2, 0):
    for step in range(steps):
        train(X[step::8][rank::size], Y[step::8][rank::size])
    before = w.get_value()
    evaluate(lambda rows: [0.0], X, batch_size=len(X))
    moved.append(bool((w.get_value() != before).any()))
assert moved == [False] * 5, moved
finish_training()
