from theano_ops_gpu_head import *


def start():
    return [theano.shared(np.arange(6, dtype="float32").reshape(2, 3), "W"), theano.shared(np.ones(3, "float32"), "b")]


# Gradients of parameters: nothing is transferred but the batch, and the gradients' memory becomes the result.
w, b = start()
x = T.fmatrix("x")
loss = T.sqr(w * x + b).sum()
grads = all_reduce(*theano.grad(loss, [w, b]), op="mean")
function = theano.function([x], [], updates=[(w, w - 0.5 * grads[0]), (b, b - 0.5 * grads[1])])
(node,) = nodes(function)
assert node.op.inplace == (0, 1) and node.op.destroy_map == {0: [0], 1: [1]}
assert transfers(function) == (1, 0)
function(np.full((2, 3), rank, "float32"))
w0, b0 = np.arange(6.0).reshape(2, 3), np.ones(3)
dw = sum(2 * (w0 * r + b0) * r for r in range(2)) / 2
db = sum((2 * (w0 * r + b0)).sum(axis=0) for r in range(2)) / 2
np.testing.assert_allclose(w.get_value(), w0 - 0.5 * dw)
np.testing.assert_allclose(b.get_value(), b0 - 0.5 * db)
assert seen == [("mean", "GpuArray", 9)], seen

# Host values whose results go to the device only; a scalar of the host comes along.
w, b = start()
s = T.fscalar("s")
total, scalar = all_reduce(x + 1, s * 2)
function = theano.function([x, s], [], updates=[(w, w + total * scalar)])
assert [type(n.op) for n in nodes(function)] == [GpuAllReduce]
assert transfers(function)[1] == 0
function(np.full((2, 3), rank, "float32"), 1)
np.testing.assert_allclose(w.get_value(), w0 + 3 * 4)

# The scalar alone: nothing it is made of is on the device, only where it goes; whichever way Theano moves graphs.
usual = theano.compile.get_default_mode()
for mode in (usual, usual.excluding("gpuarray_graph_optimization"), "FAST_COMPILE"):
    (total,) = all_reduce(s * 2)
    function = theano.function([s], [], updates=[(w, w + total)], mode=mode)
    assert [type(n.op) for n in nodes(function)] == [GpuAllReduce], mode
    assert transfers(function) == (1, 0)

# Scalars of the host stay there, as Theano has it; both kinds keep one order.
i = T.lscalar("i")
function = theano.function([i], [*all_reduce(b * 2, op="max"), *all_reduce(i * 2), *all_reduce(w, op="min")])
found = nodes(function)
assert [type(n.op) for n in found] == [GpuAllReduce, AllReduce, GpuAllReduce], found
assert all(n.op.ordered for n in found)
seen.clear()
assert function(rank)[1] == 2
assert [(op, kind) for op, kind, _ in seen] == [("max", "GpuArray"), ("sum", "ndarray"), ("min", "GpuArray")], seen

# Calls that can be one become one, on the device too.
w, b = start()
function = theano.function([], [], updates=[(w, all_reduce(w * 2)[0]), (b, all_reduce(b * 3)[0])])
(node,) = nodes(function)
assert node.op.inplace == (0, 1)
function()
np.testing.assert_allclose(b.get_value(), np.full(3, 6))

# A value that is needed elsewhere stays.
w, b = start()
y, z = w * 2, b * 2
function = theano.function([], all_reduce(y, z) + [y[0] + 1])
(node,) = nodes(function)
assert node.op.inplace == (1,), node
np.testing.assert_allclose(function()[2], w0[0] * 2 + 1)

# A shape is known without a call.
seen.clear()
function = theano.function([], [v.shape for v in all_reduce(w * 2, b * 2)])
assert [shape.tolist() for shape in function()] == [[2, 3], [3]]
assert nodes(function) == [] and seen == []

# Memory that is not contiguous.
function = theano.function([], all_reduce(w.T, w[:, 1], b))
np.testing.assert_allclose(function()[0], 2 * w0.T)
np.testing.assert_allclose(function()[1], 2 * w0[:, 1])
