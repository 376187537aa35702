import numpy as np

from lasagne_preamble import T, X, Y, all_reduce_grads, finish_training, lasagne, rank, size, sync_updates, theano

from platoon_plugins.lasagne import DiLoCo

w = theano.shared(np.zeros(3, "f4"), name="w")
x, y = T.fmatrix("x"), T.fvector("y")
loss = T.sqr(T.dot(x, w) - y).mean()
together = lasagne.updates.sgd(all_reduce_grads(loss, [w]), [w], 0.05)
alone = lasagne.updates.sgd(loss, [w], 0.05)
gradient = lambda rows, targets, at: 2 * rows.T.dot(rows.dot(at) - targets) / len(rows)
train, expected = theano.function([x, y], loss, updates=together), np.zeros(3)
for first in (0, 8):
    rows, targets = X[first : first + 8], Y[first : first + 8]
    train(rows[rank::size], targets[rank::size])
    expected -= 0.05 * gradient(rows, targets, expected)
finish_training()
np.testing.assert_allclose(w.get_value(), expected, atol=1e-6)
updates = sync_updates(alone, [w], DiLoCo(0.5, 0.5), every_n_batches=2)
train, ends = theano.function([x, y], loss, updates=updates), [expected.copy() for _ in range(size)]
for step in range(2):
    train(X[step::4][rank::size], Y[step::4][rank::size])
    for worker_rank, end in enumerate(ends):
        rows, targets = X[step::4][worker_rank::size], Y[step::4][worker_rank::size]
        end -= 0.05 * gradient(rows, targets, end)
d = np.mean(ends, axis=0) - expected
np.testing.assert_allclose(w.get_value(), expected + 0.5 * (d + 0.5 * d), atol=1e-6)
finish_training()
