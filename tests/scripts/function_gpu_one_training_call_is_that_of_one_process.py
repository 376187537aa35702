import numpy as np

from function_gpu_header import GpuArraySharedVariable, T, X, Y, close, rank, rng, size, theano, worker
from platoon_base.data import SharedData
from platoon_base.theano_ops import function, scatter
from platoon_base.theano_ops.base import JobOp


def sgd(grads, params):
    return [(param, param - 0.1 * grad) for param, grad in zip(params, grads)]


def error(x, y):
    return T.sqr((x * w).sum(1) - y).mean()


w = theano.shared(np.full(3, rank, "f4"), "w")
x, y = T.fmatrix(), T.fvector()
xs, ys = scatter(SharedData(X, "x"), "xs"), scatter(Y, "ys")
assert all(isinstance(shared, GpuArraySharedVariable) for shared in (w, xs, ys))
np.testing.assert_array_equal(xs.get_value(), X[rank::size])
train = function([x, y], error(x, y), sgd, params=[w])
resident = function([], error(xs, ys), sgd, params=[w], sliceable_shareds=[xs, ys])
wanted, shared = np.zeros(3), [SharedData(X, "x2"), SharedData(Y, "y2")]


def follow(loss, rows):
    global wanted
    a, b = X[rows], Y[rows]
    np.testing.assert_allclose(loss, np.square(a.dot(wanted) - b).mean(), **close)
    wanted = wanted - 0.1 * 2 * a.T.dot(a.dot(wanted) - b) / len(a)
    np.testing.assert_allclose(w.get_value(), wanted, **close)
    every = worker.all_gather(w.get_value())
    assert (every == every[0]).all(), every


for step, count in enumerate((8, 7, 2, 1)):
    rows = rng.permutation(23)[:count]
    follow(train(*(shared if step % 2 else [X, Y]), batch=list(rows)), rows)
mine = [[4, 0, 2], [5, 1]]  # each worker's own rows, among those that it has
for batch_s in (slice(1, 6), None, [0, 3], mine):
    chosen = batch_s if batch_s is mine else [slice(None) if batch_s is None else batch_s] * size
    follow(resident(batch_s=batch_s), np.concatenate([np.arange(23)[r::size][chosen[r]] for r in range(size)]))
for compiled in (*train.compiled, *resident.compiled):
    ops = [n.op for n in compiled.maker.fgraph.toposort()]
    assert [type(op).__name__ for op in ops if isinstance(op, JobOp)] == ["GpuAllReduce"]
for compiled in resident.compiled:
    names = [type(n.op).__name__ for n in compiled.maker.fgraph.toposort()]
    assert any(name.startswith(("GpuSubtensor", "GpuAdvancedSubtensor1")) for name in names), names
    assert "Subtensor" not in names and "AdvancedSubtensor1" not in names, names
