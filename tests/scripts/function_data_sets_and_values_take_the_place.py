from function_preamble import ConfigurationError, T, X, Y, adagrad, alone, close, function, np, ours
from function_preamble import raises, scatter, size, theano

scale = T.fscalar("scale")
xs, ys = scatter(X, "xs"), scatter(Y.astype("f8"), "ys")
loss = ours.loss * scale
givens = {ours.x: xs, ours.y: T.cast(ys, "float32"), scale: np.float32(0.5)}
train = function([], loss, adagrad, params=ours.params, givens=givens, sliceable_shareds=[xs, ys])
mine = function(
    [scale], [loss, ours.x], givens=list(givens.items())[:2], reduce=["mean", "gather"], sliceable_shareds=[xs, ys]
)
single = theano.function(
    [alone.x, alone.y], alone.loss * np.float32(0.5), updates=adagrad(alone.loss * np.float32(0.5), alone.params)
)
for batch_s in (slice(1, 5), [0, 4, 2], None, 6):
    chosen = slice(batch_s) if batch_s is None or isinstance(batch_s, int) else batch_s
    a, b = (np.concatenate([data[r::size][chosen] for r in range(size)]) for data in (X, Y))
    np.testing.assert_allclose(train(batch_s=batch_s), single(a, b), **close)
    np.testing.assert_allclose(ours.values(), alone.values(), **close)
    found, rows = mine(np.float32(3), batch_s=batch_s)
    np.testing.assert_array_equal(rows, a)
    np.testing.assert_allclose(found, 3 * np.square(a.dot(ours.values()[:3]) + ours.values()[3] - b).mean(), **close)
# Without data sets.
halved = function([ours.x, ours.y], ours.error.mean() * scale, givens={scale: theano.shared(np.float32(0.5))})
np.testing.assert_allclose(halved(X, Y), single(X, Y), **close)
with raises(ConfigurationError, "got givens=[x]: pass a mapping"):
    function([], ours.loss, givens=[ours.x])
