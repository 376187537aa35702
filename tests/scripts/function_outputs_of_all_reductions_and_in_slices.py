from function_preamble import SharedData, T, X, function, np, rank, same_everywhere, size

x = T.fmatrix("x")
outputs = [x.mean(0), x.sum(0), x.max(), x.min(), x, T.gt(x, 0), T.gt(x, 0).sum(), x.shape[0]]
reduce = ["mean", "sum", "max", "min", "gather", "gather", "sum", None]
f = function([x], outputs, reduce=reduce)
g = function([x], (1 + x / 9).prod(), reduce="*")
for count in (1, 2, 7, 23):
    for num_slices in (1, 2, 5, 50):
        a = X[:count]
        found = f(a, num_slices=num_slices)
        for value, wanted in zip(found, [a.mean(0), a.sum(0), a.max(), a.min(), a, a > 0, (a > 0).sum()]):
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
            assert value.dtype == np.asarray(wanted).dtype and value.shape == np.shape(wanted)
        bounds = count * rank // size, count * (rank + 1) // size
        if num_slices == 1:
            assert found[-1] == max(1, bounds[1] - bounds[0])
        same_everywhere(*[value.view("u1") if value.dtype == bool else value for value in found[:-1]])
    np.testing.assert_allclose(g(a), (1 + a / 9).prod(), rtol=1e-4)
np.testing.assert_allclose(f(X, batch=[5, 3, 3], num_slices=2)[4], X[[5, 3, 3]])
np.testing.assert_allclose(f(SharedData(X), batch=slice(1, 20, 3))[4], X[1:20:3])
np.testing.assert_allclose(f(np.asfortranarray(X), batch=[5, 3, 8])[4], X[[5, 3, 8]])
