import numpy as np
from platoon_plugins.lasagne import all_reduce_grads, evaluate
import lasagne
import theano
from platoon_base import connect
from platoon_base.errors import ConfigurationError

worker = connect()
x = np.ones(4)


def train(name, rate):
    p = theano.shared(np.ones(3), name=name)
    grads = all_reduce_grads((p**2).sum(), [p])
    theano.function([], updates=lasagne.updates.sgd(grads, [p], rate))()
    return p


first = train("first", 0.1)
evaluate(lambda x, y: 0.0, x, x, 2)
first.set_value(first.get_value() * worker.global_rank)
train("second", 0.1)
evaluate(lambda x, y: 0.0, x, x, 2)
train("third", 0.1)
train("fourth", 0.1 + 0.1 * worker.global_rank)
try:
    evaluate(lambda x, y: 0.0, x, x, 2)
except ConfigurationError as exc:
    worker.report({f"error {worker.global_rank}": str(exc)})
