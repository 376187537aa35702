from function_preamble import T, function, np, scatter

for dtype in ("float32", "float64", "int32", "int64", "uint8"):
    rows = np.array([100, 1, 2, 3, 50, 4] if dtype != "uint8" else [0, 6, 200, 3, 255, 4], dtype)
    xs = scatter(rows)
    outputs = [xs.max(), xs.min(), xs.prod(dtype=dtype), xs.sum(dtype=dtype), xs]
    f = function([], outputs, reduce=["max", "min", "prod", "sum", "gather"], sliceable_shareds=[xs])
    for batch_s in ([[], [1, 2]], [slice(0, 0), slice(1, 3)]):
        selected = rows[[3, 5]]
        wanted = [selected.max(), selected.min(), selected.prod(), selected.sum(), selected]
        for found, value in zip(f(batch_s=batch_s), wanted):
            np.testing.assert_array_equal(found, value)
            assert found.dtype == dtype
x = T.fvector("x")
f = function([x], [x.prod(), -x.max(), -x.min()], reduce=["prod", "max", "min"])
np.testing.assert_array_equal(f(np.float32([7])), [7, -7, -7])
