from function_preamble import X, Y, alone, close, function, momentum, np, ours, same_everywhere
from function_preamble import theano


def updates(model):
    count = theano.shared(np.int64(0), "count")
    return momentum(model.loss, model.params) + [(count, count + 1)], count


mine, count = updates(ours)
single = theano.function([alone.x, alone.y], alone.loss, updates=updates(alone)[0])
train = function([ours.x, ours.y], ours.loss, dict(mine))
for start in range(0, 20, 5):
    rows = slice(start, start + 5)
    np.testing.assert_allclose(train(X, Y, batch=rows), single(X[rows], Y[rows]), **close)
    np.testing.assert_allclose(ours.values(), alone.values(), **close)
same_everywhere(ours.values())
assert count.get_value() == 4
