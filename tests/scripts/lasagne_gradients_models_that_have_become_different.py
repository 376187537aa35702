from lasagne_preamble import *

x = np.ones(4)


def train(name, rate):
    p = theano.shared(np.ones(3), name=name)
    grads = all_reduce_grads((p**2).sum(), [p])
    theano.function([], updates=lasagne.updates.sgd(grads, [p], rate))()
    return p


first = train("first", 0.1)
evaluate(lambda x, y: 0.0, x, x, 2)
first.set_value(first.get_value() * rank)
train("second", 0.1)
evaluate(lambda x, y: 0.0, x, x, 2)
train("third", 0.1)
train("fourth", 0.1 + 0.1 * rank)
try:
    evaluate(lambda x, y: 0.0, x, x, 2)
except ConfigurationError as exc:
    worker.report({f"error {rank}": str(exc)})
