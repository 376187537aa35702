from function_preamble import ConfigurationError, SharedData, T, X, Y, function, np, ours, rank
from function_preamble import same_everywhere

rate, offset = T.fscalar("rate"), T.fvector("offset")
loss = T.sqr(T.dot(ours.x + offset, ours.w) + ours.b - ours.y).mean()


def sgd(grads, params):
    return [(param, param - rate * grad) for param, grad in zip(params, grads)]


train = function([ours.x, ours.y, rate, offset], loss, sgd, params=ours.params, broadcast=[offset])
shuffled = np.random.RandomState(rank).permutation(X)
good = X, Y, np.float32(0.1), np.zeros(3, "f4")
nothing_but_nan = np.full(3, np.nan, "f4")
train(*good)
before = ours.values()
for bad in (
    (X, Y, np.float32(0.1 * (1 + (rank == 1))), good[3]),
    (X, Y, np.float32(0.1), np.eye(3, dtype="f4")[int(rank == 1)]),
    (shuffled, Y, *good[2:]),
    (SharedData(X, "x") if rank else X, *good[1:]),
    (X[: 20 + rank], Y[: 20 + rank], *good[2:]),
    (X, Y[::-1] if rank == 2 else Y, *good[2:]),
):
    try:
        train(*bad)
    except ConfigurationError as exc:
        print("refused:", exc)
np.testing.assert_array_equal(ours.values(), before)
assert np.isfinite(train(*good))
same_everywhere(ours.values())
assert np.isnan(train(*good[:3], nothing_but_nan))  # NaN is the same as NaN
