import sys

import numpy as np
import theano
from platoon_plugins.lasagne import evaluate, finish_training, prepare
import lasagne
from platoon_base import connect
from platoon_base.errors import ConfigurationError
from refusing import raises

how = sys.argv[2]
w = theano.shared(np.zeros(3, "float32"), "w")
x = theano.tensor.fvector()
loss = ((w - x) ** 2).sum()
train = theano.function([x], loss, updates=prepare(lasagne.updates.sgd, loss, [w], learning_rate=0.1))
for _ in range(5):
    train(np.ones(3, "float32"))
if how == "finishes":
    finish_training()
if how == "closes":
    connect().close()
    for late in finish_training, lambda: evaluate(train, np.ones((4, 3), "float32"), batch_size=2):
        with raises(ConfigurationError, "left the job", "before finish_training()"):
            late()
if how == "fails":
    raise RuntimeError("as it should")
