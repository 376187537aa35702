from lasagne_preamble import EASGD, T, X, Y, finish_training, lasagne, np, rank, size, sync_updates
from lasagne_preamble import theano, worker
from platoon_plugins.lasagne import LocalSGD

x, y = T.fmatrix("x"), T.fvector("y")


def compiled(rule, period, update, **options):
    """Return a function that trains, the parameters, and the optimizer's moments."""
    w = theano.shared(np.zeros(3, "f4"), name="w")
    b = theano.shared(np.float32(0), name="b")
    loss = T.sqr(T.dot(x, w) + b - y).mean()
    updates = update(loss, [w, b], **options)
    moments = [v for v in updates if v not in (w, b) and v.get_value().shape == (3,)]
    updates = sync_updates(updates, [w, b], rule, every_n_batches=period)
    return theano.function([x, y], loss, updates=updates), w, moments


def trained(train):
    for first in range(0, 24, 8):
        train(X[first : first + 8][rank::size], Y[first : first + 8][rank::size])
    finish_training()


# Momentum in NumPy, on the mini-batches of both.
expected, bias, v, v_bias = np.zeros(3), 0.0, np.zeros(3), 0.0
for first in range(0, 24, 8):
    rows, targets = X[first : first + 8], Y[first : first + 8]
    error = rows.dot(expected) + bias - targets
    v, v_bias = 0.9 * v - 0.05 * 2 * rows.T.dot(error) / 8, 0.9 * v_bias - 0.05 * 2 * error.mean()
    expected, bias = expected + v, bias + v_bias

train, w, (velocity,) = compiled(LocalSGD(moments=True), 1, lasagne.updates.momentum, learning_rate=0.05)
trained(train)
np.testing.assert_allclose(w.get_value(), expected, atol=1e-6)
np.testing.assert_allclose(velocity.get_value(), v, atol=1e-6)

train, w, (velocity,) = compiled(LocalSGD(), 1, lasagne.updates.momentum, learning_rate=0.05)
trained(train)
own = worker.gather(velocity.get_value().tobytes())
assert own[0] != own[1], "without moments=True each worker keeps its own"

# What else has the shape of a parameter stays each worker's own: statistics, sums, and a parameter that is left out.
w, v, q, mean, total = (theano.shared(np.ones(3, "f4"), name=name) for name in ("w", "v", "q", "mean", "total"))
loss = T.sqr(T.dot(x, w * v * q) - y).mean()
updates = lasagne.updates.momentum(loss, [w, v, q], 0.01)
updates[mean] = 0.5 * mean + 0.5 * x.mean(0)
updates[total] = total + x.sum(0)
updates = sync_updates(updates, [w, v], LocalSGD(moments=True), every_n_batches=1, statistics=iter([mean]))
train = theano.function([x, y], updates=updates)
rows = X[rank::size][:4]
gradient = 2 * rows.T.dot(rows.sum(1) - Y[rank::size][:4]) / 4
train(rows, Y[rank::size][:4])
kept = 0.5**size  # Moving statistics decay as fast in an epoch as in one process.
np.testing.assert_allclose(mean.get_value(), kept + (1 - kept) * rows.mean(0), atol=1e-5)
np.testing.assert_allclose(total.get_value(), 1 + rows.sum(0), atol=1e-5)
np.testing.assert_allclose(q.get_value(), 1 - 0.01 * gradient, atol=1e-5)
assert abs(w.get_value() - q.get_value()).max() > 1e-4
finish_training()

train, w, moments = compiled(EASGD(moments=True), 2, lasagne.updates.adam, learning_rate=0.01)
trained(train)
assert len(moments) == 2
for moment in moments:
    everyones = worker.gather(moment.get_value().tobytes())
    assert everyones[0] == everyones[1], "the end leaves the center's on all"
    assert abs(moment.get_value()).max() > 0
assert moments[1].get_value().min() >= 0, "a second moment is never extrapolated"
