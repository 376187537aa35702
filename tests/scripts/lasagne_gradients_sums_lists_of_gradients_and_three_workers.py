import numpy as np
from platoon_plugins.lasagne import all_reduce_grads
import theano
import theano.tensor as T
from platoon_base import connect

worker = connect()
rank = worker.global_rank
w, v = theano.shared(np.ones(3, "f4"), name="w"), theano.shared(np.ones((), "f8"), name="v")
x = T.fvector("x")
loss = (w * x).sum() + v**2 * x.sum()
clipped = [T.clip(g, 0, 3) for g in theano.grad(loss, [w, v])]
mean, total = (all_reduce_grads(clipped, (w, v), average=average) for average in (True, False))
assert [g.dtype for g in total] == ["float32", "float64"]
found = theano.function([x], mean + total)(np.array([1, 2, 30 * rank], "f4"))
np.testing.assert_allclose(found[0], [1, 2, 2])
np.testing.assert_allclose(found[1], 3)
np.testing.assert_allclose(found[2], [3, 6, 6])
np.testing.assert_allclose(found[3], 9)
