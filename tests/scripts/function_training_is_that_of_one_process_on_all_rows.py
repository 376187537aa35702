from function_preamble import SharedData, X, Y, adagrad, alone, close, function, np, ours, rank
from function_preamble import same_everywhere, theano

single = theano.function([alone.x, alone.y], alone.loss, updates=adagrad(alone.loss, alone.params))
train = function([ours.x, ours.y], ours.loss, adagrad, params=ours.params)
shared = [SharedData(X, "x"), SharedData(Y, "y")]
for step in range(12):
    order = np.random.RandomState([step, rank]).permutation(23)  # differs from worker to worker
    first = np.random.RandomState([step, 0]).permutation(23)
    count = [8, 7, 2, 1][step % 4]
    found = train(*(shared if step % 2 else [X, Y]), batch=list(order[:count]))
    wanted = single(X[first[:count]], Y[first[:count]])
    np.testing.assert_allclose(found, wanted, **close)
    np.testing.assert_allclose(ours.values(), alone.values(), **close)
    same_everywhere(found, ours.values())
for batch in (slice(3, 10), slice(None), slice(20, 1, -3), None, np.arange(23) > 15, 9, np.int64(23)):
    rows = slice(None) if batch is None else slice(batch) if isinstance(batch, (int, np.integer)) else batch
    np.testing.assert_allclose(train(X, Y, batch=batch), single(X[rows], Y[rows]), **close)
np.testing.assert_allclose(ours.values(), alone.values(), **close)
assert found.shape == () and found.dtype == np.float32
