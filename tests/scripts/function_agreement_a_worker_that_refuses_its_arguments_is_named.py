from function_preamble import X, Y, close, function, np, ours, rank, scatter

xs = scatter(X)
f = function([ours.x, ours.y], ours.loss)
g = function([], xs.sum(), reduce="sum", sliceable_shareds=[xs])
for call in (
    lambda: f(X, Y, batch="all") if rank == 1 else f(X, Y),
    lambda: f(X, Y[:9]) if rank == 2 else f(X, Y),
    lambda: f(X) if rank == 0 else f(X, Y),
    lambda: f(X, 3) if rank == 1 else f(X, Y),
    lambda: f(X, Y, batch=slice(0, 9, 0 if rank else 1)),
    lambda: g(batch_s=[0] if rank else [[0], [1], [2]]),
    lambda: g(batch_s=[[0], [-99], [1]]),
    lambda: g(batch_s=[7]),  # worker 2 has 7 rows
    lambda: f(X, Y) if rank else g(),
):
    try:
        call()
    except Exception as exc:
        print("refused:", type(exc).__name__, exc)
np.testing.assert_allclose(f(X, Y), np.square(X.dot(ours.values()[:3]) + ours.values()[3] - Y).mean(), **close)
np.testing.assert_allclose(g(), X.sum(), **close)
