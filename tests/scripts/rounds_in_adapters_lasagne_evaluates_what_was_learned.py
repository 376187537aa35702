from lasagne_preamble import ASGD, T, X, Y, evaluate, finish_training, lasagne, np, rank
from lasagne_preamble import sync_updates, theano, worker

w = theano.shared(np.zeros(3, "f4"), name="w")
x, y = T.fmatrix("x"), T.fvector("y")
loss = T.sqr(T.dot(x, w) - y).mean()
updates = sync_updates(lasagne.updates.sgd(loss, [w], 0.05), [w], ASGD(), every_n_batches=50)
train, common = theano.function([x, y], loss, updates=updates), np.zeros(3)
worker.barrier("all have begun")
for epoch in range(3):
    before = w.get_value()
    for step in range(2 + rank):
        train(X[step::8], Y[step::8])
    steps = worker.gather((w.get_value() - before).astype("f8").tobytes())
    common += sum(np.frombuffer(each) for each in steps)
    found = evaluate(lambda rows: list(map(float, w.get_value())), X, batch_size=len(X))
    np.testing.assert_allclose(found, common, atol=1e-5)
finish_training()
np.testing.assert_allclose(w.get_value(), common, atol=1e-5)
