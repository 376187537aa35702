from lasagne_preamble import *

p, x = theano.shared(np.zeros(300, "f4"), name="p"), T.fvector()
f = theano.function([x], all_reduce_grads([x], [p]))
bad = np.ones(300, "f4")
if rank:
    bad[[0, 100, 200]] = np.nan, np.inf, -np.inf
(found,) = f(bad)
assert not np.isfinite(found[[0, 100, 200]]).any(), found
assert np.isfinite(found).sum() == 297
(found,) = f(np.ones(300, "f4"))
np.testing.assert_array_equal(found, 1)
