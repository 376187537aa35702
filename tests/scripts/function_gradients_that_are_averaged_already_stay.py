from function_preamble import X, Y, adagrad, alone, close, function, np, ours, theano
from platoon_base.theano_ops import all_reduce

grads = all_reduce(*theano.grad(ours.loss, ours.params), op="mean")
train = function([ours.x, ours.y], ours.loss, adagrad(grads, ours.params))
single = theano.function([alone.x, alone.y], alone.loss, updates=adagrad(alone.loss, alone.params))
for step in range(3):
    np.testing.assert_allclose(train(X[:8], Y[:8]), single(X[:8], Y[:8]), **close)
np.testing.assert_allclose(ours.values(), alone.values(), **close)
