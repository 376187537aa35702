from function_preamble import SharedData, T, X, Y, adagrad, alone, close, function, np, ours, rank
from function_preamble import scatter, size, theano


def resident(model, x, y):
    return T.sqr(T.dot(x, model.w) + model.b - y).mean()


xs, ys = scatter(SharedData(X), "xs"), scatter(Y, "ys", dtype="f4")
assert xs.get_value().shape[0] == len(X[rank::size])
loss = resident(ours, xs, ys)
train = function([], loss, adagrad, params=ours.params, sliceable_shareds=[xs, ys])
rows_out = function([], xs, reduce="gather", sliceable_shareds=[xs])
single = theano.function([alone.x, alone.y], alone.loss, updates=adagrad(alone.loss, alone.params))
shortest = len(X) // size
lists = [np.random.RandomState(r).permutation(len(X[r::size]))[: 3 + r] for r in range(size)]
own = [lists[r] if r == rank else np.zeros(1, int) for r in range(size)]  # what others pass for themselves counts
slices = [slice(r, 4) for r in range(size)]
for batch_s in (slice(1, 5), 3, None, [0, 4, 2], slice(6, None), lists, own, slices, [-1, 2]):
    selected = []
    for r in range(size):
        mine = lists[r] if batch_s is own else batch_s
        if isinstance(mine, list) and not np.isscalar(mine[0]):
            mine = mine[r]
        mine = slice(mine) if mine is None or isinstance(mine, int) else mine
        selected.append((X[r::size][mine], Y[r::size][mine]))
    a, b = (np.concatenate(arrays) for arrays in zip(*selected))
    np.testing.assert_allclose(train(batch_s=batch_s), single(a, b), **close)
    np.testing.assert_allclose(ours.values(), alone.values(), **close)
    for num_slices in (1, 3):
        np.testing.assert_array_equal(rows_out(batch_s=batch_s, num_slices=num_slices), a)
one_for_all = [2, 0, 1] if rank == 0 else [1, 1, 1]
wanted = np.concatenate([X[r::size][[2, 0, 1]] for r in range(size)])
np.testing.assert_array_equal(rows_out(batch_s=one_for_all), wanted)
evaluate = function([], loss, sliceable_shareds=[xs, ys])
whole = np.square(X.dot(ours.values()[:3]) + ours.values()[3] - Y).mean()
for num_slices in (1, 4, 100):
    np.testing.assert_allclose(evaluate(num_slices=num_slices), whole, **close)
none_here = [slice(0, 0)] * (size - 1) + [slice(0, 2)]
np.testing.assert_array_equal(rows_out(batch_s=none_here), X[size - 1 :: size][:2])
