"""A loss that is a sum over the rows: averaged gradients and validation are those of one process."""

from lasagne_preamble import *

rows = np.random.RandomState(0).normal(size=(240, 3)).astype(theano.config.floatX)


def trained(average=None, penalty=0.0):
    x = T.matrix("x")
    w = theano.shared(np.full(3, 0.5, theano.config.floatX), "w")
    loss = 0.5 * T.sqr(x.dot(w) - x.sum(axis=1)).sum() + penalty * T.sqr(w).sum()
    updates = prepare(lasagne.updates.sgd, loss, [w], mode="sync", average=average, learning_rate=0.002)
    train = theano.function([x], loss, updates=updates)
    for start in range(0, len(rows), 60):
        train(rows[start : start + 60][rank::size])
    finish_training()
    return w.get_value()


def sgd(penalty):
    """By hand in NumPy."""
    w = np.full(3, 0.5)
    for start in range(0, len(rows), 60):
        batch = rows[start : start + 60].astype(float)
        w -= 0.002 * (batch.T.dot(batch.dot(w) - batch.sum(axis=1)) + 2 * penalty * w)
    return w


for penalty in (0.0, 3.0):
    np.testing.assert_allclose(trained(penalty=penalty), sgd(penalty), rtol=1e-4)
averaged = trained(average=True)
assert np.abs(averaged - 1).max() > 1.2 * np.abs(sgd(0) - 1).max()  # shorter steps

x = T.matrix("x")
total = theano.function([x], T.sqr(x).sum())
mean = theano.function([x], T.sqr(x).mean())
cut = [slice(start, min(start + 100, 230)) for start in range(0, 230, 100)]
for function, of_one in ((total, np.sum), (lambda batch: float(total(batch)), np.sum), (mean, np.mean)):
    values = [of_one(rows[each].astype(float) ** 2) for each in cut]
    expected = np.average(values, weights=[each.stop - each.start for each in cut])
    np.testing.assert_allclose(evaluate(function, rows[:230], batch_size=100), expected, rtol=1e-5)
worker.report({f"done {rank}": 1})
