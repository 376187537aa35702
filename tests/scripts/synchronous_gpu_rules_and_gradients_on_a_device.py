import numpy as np

from synchronous_gpu_header import GpuArraySharedVariable, T, all_reduce_grads, calls, rank, theano

from platoon_base.platoon_api.global_dynamics import EASGD, AverageSGD, Downpour

x, u, c = (theano.shared(np.full((2, 70), rank + i, "f4"), name=f"v{i}") for i in (1, 3, 5))
assert isinstance(x, GpuArraySharedVariable)
rules = {"easgd": EASGD(), "downpour": Downpour(), "average": AverageSGD()}
rules["easgd"].make_rule(x, c, 0.25)
rules["downpour"].make_rule(x, u, c)
rules["average"].make_rule(u)
for rule in rules.values():
    assert calls(rule.function) == ["GpuAllReduce"]
# By hand: c = 5 on both, x = 1, 2 and d = -1, -0.75.
rules["easgd"]()
assert (x.get_value() == [2, 2.75][rank]).all() and (c.get_value() == 3.25).all()
rules["downpour"]()
assert (c.get_value() == 3.25 + 3 + 4).all() and (x.get_value() == c.get_value()).all() and not u.get_value().any()
u.set_value(np.full((2, 70), rank + 1, "f4"))
rules["average"]()
assert (u.get_value() == 1.5).all()

p, b = theano.shared(np.full((2, 70), rank, "f4"), name="p"), theano.shared(np.ones(3, "f4"), name="b")
g, h = T.fmatrix(), T.fvector()
values = [np.random.RandomState(i).randn(2, 70).astype("f4") for i in range(2)]
exact = (values[0].astype("f8") + values[1]) / 2
function = theano.function([g, h], all_reduce_grads([g, h], [p, b]))
assert calls(function) == ["GpuAllReduce"]
first, second = function(values[rank], np.full(3, 1e-30 * rank, "f4"))
np.testing.assert_allclose(first, exact, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(second, 0.5e-30, rtol=1e-5)
assert not p.get_value().any()
