from job_preamble import connect, np
import theano
import theano.tensor as T
from platoon_base.platoon_api import ops

rank = connect().global_rank
x = T.fvector("x")
dest = theano.shared(np.zeros(2, "f4"))
outputs = [op(x) for op in (ops.AllReduceSum, ops.AllReduceProd, ops.AllReduceMax, ops.AllReduceMin)]
f = theano.function([x], outputs, updates=[(dest, ops.AllReduceSum(x * 2, dest))])
found = f(np.array([rank + 1, 3], "f4"))
np.testing.assert_array_equal(found, [[3, 6], [2, 9], [2, 3], [1, 3]])
np.testing.assert_array_equal(dest.get_value(), [6, 12])
destroying = ops.AllReduceSum(x + 1, inplace=True)
assert destroying.owner.op.destroy_map == {0: [0]}
assert (theano.function([x], destroying, accept_inplace=True)(np.ones(1, "f4")) == 4).all()
