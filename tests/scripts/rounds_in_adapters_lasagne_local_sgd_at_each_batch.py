from lasagne_preamble import T, X, Y, finish_training, lasagne, np, rank, size, sync_updates, theano
from platoon_plugins.lasagne import LocalSGD

w = theano.shared(np.zeros(3, "f4"), name="w")
x, y = T.fmatrix("x"), T.fvector("y")
loss = T.sqr(T.dot(x, w) - y).mean()
updates = sync_updates(lasagne.updates.sgd(loss, [w], 0.05), [w], LocalSGD(), every_n_batches=1)
train = theano.function([x, y], loss, updates=updates)
expected = np.zeros(3)
for first in range(0, 24, 8):
    rows, targets = X[first : first + 8], Y[first : first + 8]
    train(rows[rank::size], targets[rank::size])
    expected -= 0.05 * 2 * rows.T.dot(rows.dot(expected) - targets) / 8
    np.testing.assert_allclose(w.get_value(), expected, atol=1e-6)
finish_training()
np.testing.assert_allclose(w.get_value(), expected, atol=1e-6)
