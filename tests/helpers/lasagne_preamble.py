"""What scripts of the Lasagne tests have in common: a small network with batch normalization, and its data."""

# ruff: noqa: F401 - for the scripts that follow
import sys

import numpy as np

from platoon_plugins.lasagne import (
    ASGD,
    EASGD,
    StopOnPatience,
    all_reduce_grads,
    evaluate,
    finish_training,
    iterate_minibatches,
    prepare,
    sync_updates,
)

import lasagne  # isort: skip
import theano  # isort: skip
import theano.tensor as T  # isort: skip

from refusing import raises

from platoon_base import connect
from platoon_base.errors import ConfigurationError, LayoutMismatchError


class BatchNorm(lasagne.layers.Layer):
    """Batch normalization whose running mean follows each batch by a default update, as in Lasagne 0.2.dev1."""

    def __init__(self, incoming, **kwargs):
        super().__init__(incoming, **kwargs)
        shape = self.input_shape[1:]
        self.beta = self.add_param(lasagne.init.Constant(0), shape, "beta", regularizable=False)
        self.mean = self.add_param(lasagne.init.Constant(0), shape, "mean", trainable=False, batch_norm_stat=True)

    def get_output_for(self, input, deterministic=False, **kwargs):
        if deterministic:
            return input - self.mean + self.beta
        mean = input.mean(0)
        running = theano.clone(self.mean, share_inputs=False)
        running.default_update = 0.5 * running + 0.5 * mean
        return input - (mean + 0 * running) + self.beta


worker = connect()
rank, size = worker.global_rank, worker.global_size
rng = np.random.RandomState(0)
X = rng.randn(24, 3).astype("f4")
Y = X.dot(rng.randn(3).astype("f4"))


class Model:
    """A linear network behind batch normalization: x, y, the layers, loss and error, parameters and statistics."""

    def __init__(self, batch_norm=BatchNorm, weights=0.5):
        self.x, self.y = T.fmatrix("x"), T.fvector("y")
        network = batch_norm(lasagne.layers.InputLayer((None, 3), self.x), name="bn")
        network = lasagne.layers.DenseLayer(network, 1, W=lasagne.init.Constant(weights), nonlinearity=None, name="out")
        self.network = network
        self.params = lasagne.layers.get_all_params(network, trainable=True)
        self.statistics = lasagne.layers.get_all_params(network, batch_norm_stat=True)
        self.loss = T.sqr(lasagne.layers.get_output(network).ravel() - self.y).mean()
        error = T.sqr(lasagne.layers.get_output(network, deterministic=True).ravel() - self.y).mean()
        self.error = theano.function([self.x, self.y], error)

    def compile(self, updates):
        return theano.function([self.x, self.y], self.loss, updates=updates)

    def values(self, variables):
        return [variable.get_value() for variable in variables]


def averaged(values):
    """Return the means over the workers, by NumPy."""
    return [total / size for total in worker.advanced.sum_arrays("averaged in a test", values).arrays]
