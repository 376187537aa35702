"""What scripts of the tests of one training call have in common: a linear model, its data, and two update rules."""

import os  # noqa: F401

from platoon_base import compat, connect

compat.apply()

import numpy as np
import theano
import theano.tensor as T
from refusing import raises  # noqa: F401

from platoon_base.data import SharedData  # noqa: F401
from platoon_base.errors import ConfigurationError, LayoutMismatchError, PlatoonError  # noqa: F401
from platoon_base.theano_ops import function, scatter  # noqa: F401

worker = connect()
rank, size = worker.global_rank, worker.global_size
rng = np.random.RandomState(0)
X = rng.randn(23, 3).astype("f4")
Y = X.dot(rng.randn(3).astype("f4")) + 1


class Model:
    def __init__(self, start):
        self.x, self.y = T.fmatrix("x"), T.fvector("y")
        self.w = theano.shared(np.full(3, start, "f4"), "w")
        self.b = theano.shared(np.float32(start), "b")
        self.params = [self.w, self.b]
        self.error = T.sqr(T.dot(self.x, self.w) + self.b - self.y)
        self.loss = self.error.mean()

    def values(self):
        return np.append(self.w.get_value(), self.b.get_value())


def momentum(loss_or_grads, params):
    grads = loss_or_grads if isinstance(loss_or_grads, list) else theano.grad(loss_or_grads, params)
    updates = []
    for param, grad in zip(params, grads):
        v = theano.shared(np.zeros_like(param.get_value()), "v")
        updates += [(v, 0.9 * v - 0.1 * grad), (param, param + 0.9 * v - 0.1 * grad)]
    return updates


def adagrad(loss_or_grads, params):
    grads = loss_or_grads if isinstance(loss_or_grads, list) else theano.grad(loss_or_grads, params)
    updates = []
    for param, grad in zip(params, grads):
        a = theano.shared(np.zeros_like(param.get_value()), "a")
        updates += [(a, a + grad**2), (param, param - 0.1 * grad / T.sqrt(a + grad**2 + 1e-6))]
    return updates


ours, alone = Model(rank), Model(0)  # rank 0's values go to all
close = dict(rtol=1e-4, atol=1e-5)


def same_everywhere(*values):
    for value in values:
        every = worker.all_gather(np.array(value))
        assert (every == every[0]).all(), every
