from device_preamble import *


def parts(dtype, shape):
    rng = np.random.default_rng(3)
    return [rng.integers(1, 5, shape).astype(dtype) for _ in range(size)]


OPS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
for dtype in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8"):
    for shape in ((), (1,), (17,), (3, 1000)):
        mine = parts(dtype, shape)
        for op, f in OPS.items():
            want = f(np.stack(mine).astype(dtype), axis=0).astype(dtype)
            got = worker.all_reduce(on_device(mine[rank]), op)
            assert np.array_equal(np.asarray(got), want), (dtype, shape, op, np.asarray(got), want)
        total = np.sum(np.stack(mine), axis=0, dtype=dtype)
        want = (total / size).astype(dtype) if dtype.startswith("f") else total // size
        x = on_device(mine[rank])
        assert worker.all_reduce(x, "mean", x) is x
        assert np.array_equal(np.asarray(x), want), (dtype, shape, np.asarray(x), want)
        assert np.array_equal(np.asarray(worker.all_gather(on_device(mine[rank]))), np.stack(mine))
    whole = [np.stack(parts(dtype, (5,))) + r for r in range(size)]
    whole = [w.astype(dtype) for w in whole]
    got = worker.advanced.reduce_scatter(on_device(whole[rank]), "sum")
    assert np.array_equal(np.asarray(got), np.sum(np.stack(whole), axis=0, dtype=dtype)[rank])
    x = on_device(np.full((4, 3), rank + 1, dtype))
    worker.broadcast([x], root=1)
    assert (np.asarray(x) == 2).all()
x = on_device(np.arange(10, dtype="float32"))[::2]
assert np.array_equal(np.asarray(worker.all_reduce(x)), size * np.arange(10)[::2])
