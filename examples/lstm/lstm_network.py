"""The LSTM of the original Platoon's example in plain Theano.

Words are embedded, one LSTM layer reads them, the mean of its outputs over the words goes through dropout into a
softmax over two classes; Adadelta. 18.6 million float32 parameters at the default sizes.

`benchmarks/lstm.py` times it.
"""

import numpy as np
import theano
import theano.tensor as T
from theano.sandbox.rng_mrg import MRG_RandomStreams

VOCABULARY, UNITS, CLASSES = 10_000, 1024, 2
FULL = {"vocabulary": VOCABULARY, "units": UNITS}
SMALL = {"vocabulary": 2000, "units": 32, "scale": 0.2}


def parameters(vocabulary=VOCABULARY, units=UNITS, scale=0.01):
    """Make the shared variables, weights of normal distribution; few units learn sooner from a greater `scale`."""
    rng = np.random.RandomState(0)

    def make(name, *shape, scale=scale):
        return theano.shared((scale * rng.standard_normal(shape)).astype("float32"), name)

    return [
        make("embedding", vocabulary, units),
        make("W", units, 4 * units),
        make("U", units, 4 * units),
        make("b", 4 * units, scale=0),
        make("V", units, CLASSES),
        make("c", CLASSES, scale=0),
    ]


def scores(params, words, mask, dropout):
    """Return a score for each text and class; `dropout` maps the means over the words to what is left of them."""
    embedding, w, u, b, v, c = params
    units = u.get_value(borrow=True, return_internal_type=True).shape[0]
    inputs = embedding[words.flatten()].reshape((words.shape[0], words.shape[1], units))

    def step(x, m, h, memory, u):
        gates = x + T.dot(h, u)
        i, f, o = (T.nnet.sigmoid(gates[:, k * units : (k + 1) * units]) for k in range(3))
        new = f * memory + i * T.tanh(gates[:, 3 * units :])
        new = m[:, None] * new + (1 - m)[:, None] * memory
        return m[:, None] * (o * T.tanh(new)) + (1 - m)[:, None] * h, new

    start = T.zeros((words.shape[1], units), "float32")
    (outputs, _), _ = theano.scan(step, [T.dot(inputs, w) + b, mask], [start, start], [u])
    mean = (outputs * mask[:, :, None]).sum(axis=0) / mask.sum(axis=0)[:, None]
    return T.dot(dropout(mean), v) + c


def loss(params, words, mask, labels, seed=0):
    """Return the cross-entropy, averaged over the mini-batch."""
    random = MRG_RandomStreams(seed + 1)
    found = scores(params, words, mask, lambda x: x * random.binomial(x.shape, p=0.5, dtype="float32"))
    # Not T.nnet.softmax: its gradient stays on the host where there is no cuDNN.
    right = (found * T.cast(T.eq(T.arange(CLASSES), labels[:, None]), "float32")).sum(axis=1)
    return (T.log(T.exp(found).sum(axis=1)) - right).mean(dtype="float32")


def adadelta(gradients, params, rho=0.95, epsilon=1e-6):
    """Return the updates of Adadelta (Zeiler, 2012)."""
    # Plain numbers would make it float64, where floatX is.
    rho, rest, epsilon = np.float32(rho), np.float32(1 - rho), np.float32(epsilon)
    updates = []
    for param, gradient in zip(params, gradients):
        squares, steps = (theano.shared(param.get_value() * np.float32(0)) for _ in range(2))
        new = rho * squares + rest * gradient**2
        change = -T.sqrt(steps + epsilon) / T.sqrt(new + epsilon) * gradient
        updates += [(squares, new), (steps, rho * steps + rest * change**2), (param, param + change)]
    return updates


def inputs():
    """Return the variables of a mini-batch."""
    return [T.lmatrix("words"), T.fmatrix("mask"), T.lvector("labels")]


def compile_step(params, seed=0, average=list):
    """Compile one step of training: (words, mask, labels) -> cost, which each call waits for.

    `average` maps the gradients of this worker to those to train by.
    """
    batch = inputs()
    cost = loss(params, *batch, seed)
    return theano.function(batch, cost, updates=adadelta(average(T.grad(cost, params)), params))


def compile_halves(params, seed=0):
    """Compile a step in two halves, between which its gradients may be averaged over all workers.

    Returns
    -------
    compute : function of (words, mask, labels) -> cost
        It leaves the gradients in `gradients`.
    apply : function without arguments
        It changes the parameters by `gradients`.
    gradients : list of shared variable
    """
    batch = inputs()
    cost = loss(params, *batch, seed)
    gradients = [theano.shared(param.get_value() * np.float32(0), f"gradient of {param.name}") for param in params]
    compute = theano.function(batch, cost, updates=list(zip(gradients, T.grad(cost, params))))
    return compute, theano.function([], updates=adadelta(gradients, params)), gradients


def compile_wrong(params):
    """Compile (words, mask, labels) -> the number of texts taken for the other class."""
    words, mask, labels = batch = inputs()
    classes = scores(params, words, mask, lambda x: np.float32(0.5) * x).argmax(axis=1)
    return theano.function(batch, T.neq(classes, labels).sum())
