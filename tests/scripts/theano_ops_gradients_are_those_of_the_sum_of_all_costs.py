from theano_preamble import *

# In both arrays: nothing special, a tie, a zero of one worker, zeros of both.
X = np.array([[2.0, 5.0, 0.0, 0.0], [3.0, 5.0, 7.0, 0.0]])
C = np.array([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])
G = C.sum(axis=0)
EXPECTED = {
    "sum": [G, G],
    "mean": [G / 2, G / 2],
    "max": [G * [0, 0.5, 0, 0.5], G * [1, 0.5, 1, 0.5]],
    "min": [G * [1, 0.5, 1, 0.5], G * [0, 0.5, 0, 0.5]],
    "prod": [G * [3, 5, 7, 0], G * [2, 5, 0, 0]],
}
x, z = T.dvector("x"), T.dscalar("z")
n = T.lvector("n")
for op, expected in EXPECTED.items():
    y, square, whole, _ = all_reduce(x, z, n, x + 1, op=op)
    cost = (y * C[rank]).sum() + square**2 + (whole * 2).sum()
    dx, dz, dn = theano.grad(cost, [x, z, n])
    # z is 1 and 1: every op but the sum gives 1.
    s = 2.0 if op == "sum" else 1.0
    dz_expected = {"sum": 4 * s, "mean": 2 * s, "max": 2 * s, "min": 2 * s, "prod": 4 * s}[op]
    found = theano.function([x, z, n], [dx, dz, dn])(X[rank], 1.0, [1, 2, 3])
    np.testing.assert_allclose(found[0], expected[rank], err_msg=op)
    np.testing.assert_allclose(found[1], dz_expected, err_msg=op)
    np.testing.assert_array_equal(found[2], np.zeros(3))
