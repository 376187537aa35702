from function_preamble import T, X, function, np, scatter, theano
from theano.sandbox.rng_mrg import MRG_RandomStreams

x, xs = T.fmatrix("x"), scatter(X)


def noisy(data):
    return data + MRG_RandomStreams(5).uniform(data.shape)


plain = theano.function([x], noisy(x))
resident = function([], noisy(xs), reduce="gather", sliceable_shareds=[xs])
for rows in ([0], slice(2, 4), [3, 1, 5], slice(0, 7)):
    np.testing.assert_array_equal(resident(batch_s=rows), plain(X[rows]))
