from function_preamble import T, X, function, np, rank, scatter, size, worker

x = T.fmatrix("x")
f = function([x], x, reduce="gather")
everywhere = np.arange(23)
for step, mine in enumerate(
    [
        slice(rank, rank + 4),
        slice(rank, None),
        slice(-3 - rank, None, 1 + rank),
        [rank, 5, 7][: 3 - rank],
        slice(2, 9) if rank == 0 else [5],
        [4, 2, 2] if rank == 0 else slice(9, 10),
        None if rank == 0 else [3],
        everywhere > 15 + rank,
        [1, 2] if rank == 0 else [99],
        slice(10**30, None) if rank else slice(-(10**30), 3),
    ]
):
    wanted = slice(None) if mine is None else slice(0, 0) if rank else mine
    firsts = worker.gather(everywhere[wanted].tolist(), name="rows")[0]
    np.testing.assert_array_equal(f(X, batch=mine), X[firsts], str(step))
xs = scatter(X)
g = function([], xs, reduce="gather", sliceable_shareds=[xs])
for mine, first in (
    (slice(rank, rank + 2), slice(0, 2)),
    ([3, 1], [3, 1]),
    ([rank], [0]),
    (None if rank else [1], [1]),
    (slice(None, None, 2) if rank == 0 else [1], slice(None, None, 2)),
):
    np.testing.assert_array_equal(g(batch_s=mine), np.concatenate([X[r::size][first] for r in range(size)]))
