"""The learning rate is 0: what both moved by before they first synchronized, each with half of the weight, stays."""

from lasagne_preamble import T, X, Y, evaluate, finish_training, lasagne, np, rank, sync_updates
from lasagne_preamble import theano, worker
from platoon_plugins.lasagne import GoSGD

w = theano.shared(np.zeros(3, "f4"), name="w")
x, y = T.fmatrix("x"), T.fvector("y")
loss = T.sqr(T.dot(x, w) - y).mean()
updates = sync_updates(lasagne.updates.sgd(loss, [w], 0.0), [w], GoSGD(probability=0.5))
train = theano.function([x, y], loss, updates=updates)
w.set_value(np.full(3, rank + 1, "f4"))
worker.barrier("each at its own")
for epoch in range(3):
    for step in range(5 + 3 * rank):
        train(X[step::8], Y[step::8])
    found = evaluate(lambda rows: list(map(float, w.get_value())), X, batch_size=len(X))
    np.testing.assert_allclose(found, 1.5, atol=1e-5)
finish_training()
ends = worker.gather(w.get_value().tobytes())
assert ends[0] == ends[1]
np.testing.assert_allclose(w.get_value(), 1.5, atol=1e-5)
