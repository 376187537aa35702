from theano_preamble import *

NUMPY = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
    "mean": lambda both: (both.astype("float64").sum(axis=0) / 2).astype(both.dtype),
}
DTYPES = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8"]
SHAPES = [(), (3,), (2, 3), (0, 2), (1, 2, 2)]


def values(rank):
    rng = np.random.RandomState(rank)
    return [np.asarray(rng.randint(0 if d == "uint8" else -9, 11, s), d) for d in DTYPES for s in SHAPES]


def different(rank):
    # A second call with other shapes, and arrays that are not contiguous.
    rng = np.random.RandomState(rank + 2)
    shapes = [(), (5,), (3, 4), (2, 1), (4, 1, 2)]
    return [np.asarray(rng.randint(0, 9, s), d).T for d in DTYPES for s in shapes]


variables = [T.TensorType(d, [False] * len(s))() for d in DTYPES for s in SHAPES]
for op, reduce in NUMPY.items():
    reduced = all_reduce(*variables, op=op)
    assert len({v.owner for v in reduced}) == 1
    function = theano.function(variables, reduced)
    for draw in (values, different):
        found = function(*draw(rank))
        for a, b, x, variable in zip(draw(0), draw(1), found, variables):
            expected = reduce(np.stack([a, b]))
            assert x.dtype == variable.dtype and x.shape == a.shape, (op, x, expected)
            np.testing.assert_allclose(x, expected, rtol=1e-6, err_msg=f"{op} {variable.type}")
empty = theano.function([variables[3]], all_reduce(variables[3]))
assert empty(np.zeros((0, 2), "float16"))[0].shape == (0, 2)
