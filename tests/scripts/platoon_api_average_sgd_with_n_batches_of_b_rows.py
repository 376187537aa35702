from job_preamble import np, worker
import theano
import theano.tensor as T
from platoon_base.platoon_api.global_dynamics import AverageSGD

rng = np.random.RandomState(0)
data, targets = rng.randn(50, 8, 3), rng.randn(50, 8)
x, y = T.dmatrix("x"), T.dvector("y")
weights = [theano.shared(np.zeros(3), name="together"), theano.shared(np.zeros(3), name="one process")]
gradients = [theano.shared(np.zeros(3), name=f"gradient {i}") for i in range(2)]
costs = [T.sqr(T.dot(x, w) - y).mean() for w in weights]
compute = [theano.function([x, y], updates=[(g, T.grad(c, w))]) for c, w, g in zip(costs, weights, gradients)]
apply = theano.function([], updates=[(w, w - 0.05 * g) for w, g in zip(weights, gradients)])
rule = AverageSGD(worker)
rule.make_rule(gradients[0])
mine = slice(4 * worker.global_rank, 4 * worker.global_rank + 4)
for inputs, outputs in zip(data, targets):
    compute[0](inputs[mine], outputs[mine])
    compute[1](inputs, outputs)
    rule()
    apply()
together, alone = (w.get_value() for w in weights)
assert abs(alone).max() > 0.01
np.testing.assert_allclose(together, alone, rtol=1e-10)
