import numpy as np
import sys

from lasagne_preamble import T, X, Y, evaluate, finish_training, lasagne, rank, sync_updates, theano, worker

import os
import signal
from platoon_plugins.lasagne import DiLoCo

w = theano.shared(np.zeros(3, "f4"), name="w")
x, y = T.fmatrix("x"), T.fvector("y")
loss = T.sqr(T.dot(x, w) - y).mean()
updates = sync_updates(lasagne.updates.sgd(loss, [w], 0.05), [w], DiLoCo(0.5, 0.5), every_n_batches=3)
train, error = theano.function([x, y], loss, updates=updates), theano.function([x, y], loss)
joined, begin = os.path.join(sys.argv[1], "joined"), w.get_value()
if worker.late:
    assert abs(begin).max() > 0.01, "it begins at the center"
    open(joined, "w").close()
step = 0
while step < 60 or not os.path.exists(joined):
    train(X[step % 8 :: 8], Y[step % 8 :: 8])
    step += 1
    if step == 20 and rank == 1 and not worker.late:
        os.kill(os.getpid(), signal.SIGKILL)
found = evaluate(error, X, Y, 6)
finish_training()
worker.report({f"w {rank}": w.get_value().tobytes().hex(), f"error {rank}": found})
