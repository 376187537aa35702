from lasagne_preamble import T, X, evaluate, finish_training, np, rank, sync_updates, theano
from platoon_plugins.lasagne import LocalSGD

own = 1 + rank
w = theano.shared(np.zeros(64, "f4"), name="w")
updates = sync_updates({w: w + np.float32(own)}, [w], LocalSGD(overlap=0.5), every_n_batches=4)
train = theano.function([], T.sum(w), updates=updates)
for step in range(1, 10):
    train()
    turn = 4 if step >= 6 else 0  # of the last round that is completed
    assert w.get_value().tolist() == [1.5 * turn + own * (step - turn)] * 64, (step, w.get_value())
assert evaluate(lambda rows: list(map(float, w.get_value())), X, batch_size=len(X)) == [1.5 * 9] * 64
for _ in range(2):
    train()
finish_training()
assert w.get_value().tolist() == [1.5 * 11] * 64, w.get_value()
