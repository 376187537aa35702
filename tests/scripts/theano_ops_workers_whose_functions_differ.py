from theano_preamble import *

for mode in ("FAST_RUN", "FAST_COMPILE"):
    x = T.vector("x")
    (a,) = all_reduce(x * 2)
    (b,) = all_reduce(x * 3, op="max")
    (c,) = all_reduce(x + 1, op="min")
    (d,) = all_reduce(x * 4)
    (e,) = all_reduce(a * b)
    outputs = [a, b, c, d, e]
    if rank:
        # The monitoring of one worker alone: an output that needs the last call first.
        outputs = [T.sqr(c) * b, *outputs[::-1]]
    function = theano.function([x], outputs, mode=mode)
    calls = [n for n in function.maker.fgraph.toposort() if isinstance(n.op, JobOp)]
    assert [n.op.reduction for n in calls] == ["sum", "max", "min", "sum"], calls
    found = function(np.full(2, rank + 1, theano.config.floatX))
    expected = [6, 6, 2, 12, 72]
    if rank:
        expected = [24, *expected[::-1]]
    np.testing.assert_allclose(np.array(found)[:, 0], expected)
    np.testing.assert_allclose(np.array(function.copy()(np.full(2, rank + 1, x.dtype)))[:, 0], expected)
