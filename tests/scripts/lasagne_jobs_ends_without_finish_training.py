import sys

import numpy as np
import theano
from platoon_plugins.lasagne import finish_training, prepare
import lasagne

how = sys.argv[2]
w = theano.shared(np.zeros(3, "float32"), "w")
x = theano.tensor.fvector()
loss = ((w - x) ** 2).sum()
train = theano.function([x], loss, updates=prepare(lasagne.updates.sgd, loss, [w], learning_rate=0.1))
for _ in range(5):
    train(np.ones(3, "float32"))
if how == "finishes":
    finish_training()
if how == "fails":
    raise RuntimeError("as it should")
