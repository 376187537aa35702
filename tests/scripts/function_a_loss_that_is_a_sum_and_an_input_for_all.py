from function_preamble import T, X, Y, adagrad, alone, close, function, np, ours, theano

scale, offset = T.fscalar("scale"), T.fvector("offset")


def parts(model):
    return scale * T.sqr(T.dot(model.x + offset, model.w) + model.b - model.y).sum()


loss = parts(alone)
single = theano.function([alone.x, alone.y, scale, offset], loss, updates=adagrad(loss, alone.params))
train = function(
    [ours.x, ours.y, scale, offset],
    [parts(ours), scale],
    adagrad,
    params=ours.params,
    average=False,
    reduce=["sum", None],
    broadcast=[offset],
)
for rows in (slice(0, 9), slice(9, 10), slice(10, 23)):
    found = train(X, Y, np.float32(0.01), np.ones(3, "f4"), batch=rows)
    np.testing.assert_allclose(found[0], single(X[rows], Y[rows], np.float32(0.01), np.ones(3, "f4")), **close)
    assert len(found) == 2 and found[1] == np.float32(0.01)
np.testing.assert_allclose(ours.values(), alone.values(), **close)
