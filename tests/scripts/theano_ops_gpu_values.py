from theano_ops_gpu_head import GpuAllReduce, all_reduce, nodes, rank, seen, theano, transfers
import numpy as np

NUMPY = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
    "mean": lambda both: (both.astype("float64").sum(axis=0) / 2).astype(both.dtype),
}
DTYPES = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8"]
SHAPES = [(3,), (2, 3), (0, 2), (1, 2, 2)]


def values(rank):
    rng = np.random.RandomState(rank)
    return [np.asarray(rng.randint(0 if d == "uint8" else -9, 11, s), d) for d in DTYPES for s in SHAPES]


shared = [theano.shared(value) for value in values(rank)]
for op, reduce in NUMPY.items():
    function = theano.function([], all_reduce(*shared, op=op))
    (node,) = nodes(function)
    assert type(node.op) is GpuAllReduce and node.op.reduction == op, node
    assert transfers(function) == (0, len(shared))
    for _ in range(2):
        seen.clear()
        for a, b, x in zip(values(0), values(1), function()):
            expected = reduce(np.stack([a, b]))
            assert x.dtype == a.dtype and x.shape == a.shape, (op, x, expected)
            np.testing.assert_allclose(x, expected, rtol=1e-6, err_msg=f"{op} {a.dtype}")
        assert seen == [(op, "GpuArray", 13)] * len(DTYPES), seen
for variable, value in zip(shared, values(rank)):
    np.testing.assert_array_equal(variable.get_value(), value)
