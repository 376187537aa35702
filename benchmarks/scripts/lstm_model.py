"""The LSTM of the original Platoon's example in plain Theano, and made-up reviews to train it on.

Words are embedded, one LSTM layer reads them, the mean of its outputs over the words goes through dropout into a
softmax over two classes; Adadelta. 18.6 million float32 parameters at the default sizes.
"""

import numpy as np
import theano
import theano.tensor as T
from theano.sandbox.rng_mrg import MRG_RandomStreams

VOCABULARY, UNITS, CLASSES, BATCH_SIZE = 10_000, 1024, 2, 16
SHORTEST, LONGEST = 30, 99  # words in a review, drawn uniformly


def reviews(number, vocabulary=VOCABULARY, seed=0):
    """Make mini-batches of (words, mask, labels), each padded to its longest review, in a random order of their own."""
    rng = np.random.RandomState(seed)
    batches = []
    for _ in range(number):
        lengths = rng.randint(SHORTEST, LONGEST + 1, BATCH_SIZE)
        mask = (np.arange(lengths.max())[:, None] < lengths).astype("float32")
        words = rng.randint(0, vocabulary, mask.shape) * mask.astype("int64")
        batches.append((words, mask, rng.randint(0, CLASSES, BATCH_SIZE)))
    return batches


def parameters(vocabulary=VOCABULARY, units=UNITS):
    """Make the shared variables."""
    rng = np.random.RandomState(0)

    def make(name, *shape, scale=0.01):
        return theano.shared((scale * rng.standard_normal(shape)).astype("float32"), name)

    return [
        make("embedding", vocabulary, units),
        make("W", units, 4 * units),
        make("U", units, 4 * units),
        make("b", 4 * units, scale=0),
        make("V", units, CLASSES),
        make("c", CLASSES, scale=0),
    ]


def loss(params, words, mask, labels, seed=0):
    """Return the cross-entropy, averaged over the mini-batch."""
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
    dropped = mean * MRG_RandomStreams(seed + 1).binomial(mean.shape, p=0.5, dtype="float32")
    scores = T.dot(dropped, v) + c
    # Not T.nnet.softmax: its gradient stays on the host where there is no cuDNN.
    right = (scores * T.cast(T.eq(T.arange(CLASSES), labels[:, None]), "float32")).sum(axis=1)
    return (T.log(T.exp(scores).sum(axis=1)) - right).mean(dtype="float32")


def adadelta(cost, params, rho=0.95, epsilon=1e-6):
    """Return the updates of Adadelta (Zeiler, 2012)."""
    updates = []
    for param, gradient in zip(params, T.grad(cost, params)):
        squares, steps = (theano.shared(param.get_value() * np.float32(0)) for _ in range(2))
        new = rho * squares + (1 - rho) * gradient**2
        change = -T.sqrt(steps + epsilon) / T.sqrt(new + epsilon) * gradient
        updates += [(squares, new), (steps, rho * steps + (1 - rho) * change**2), (param, param + change)]
    return updates


def compile_step(params, seed=0):
    """Compile one step of training: (words, mask, labels) -> cost, which each call waits for."""
    words, mask, labels = T.lmatrix("words"), T.fmatrix("mask"), T.lvector("labels")
    cost = loss(params, words, mask, labels, seed)
    return theano.function([words, mask, labels], cost, updates=adadelta(cost, params))
