from function_preamble import T, X, close, function, np, rank, theano, worker
from theano.sandbox.rng_mrg import MRG_RandomStreams

noise = MRG_RandomStreams(rank + 5).uniform((4,))
x = T.fmatrix("x")
mean = theano.shared(np.zeros(3, "f4") + rank, "mean")
running = theano.clone(mean, share_inputs=False)
running.default_update = 0.5 * running + 0.5 * x.mean(0)
f = function([x], [(x - 0 * running).sum(), noise], reduce=["sum", None])
wanted = np.zeros(3, "f4")
seen = []
for rows in (slice(0, 5), slice(5, 6), slice(6, 23)):
    seen.append(f(X, batch=rows)[1])
    wanted = 0.5 * wanted + 0.5 * X[rows].mean(0)
    np.testing.assert_allclose(mean.get_value(), wanted, **close)
draws = worker.all_gather(np.array(seen)).reshape(-1, 4)
assert len(np.unique(draws, axis=0)) == len(draws)
