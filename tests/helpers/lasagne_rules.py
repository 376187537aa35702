"""All update rules of Lasagne by name: RULES take a loss or gradients, WITH_GRADIENTS take gradients alone."""

import functools

import lasagne

__all__ = ["RULES", "WITH_GRADIENTS"]

RULES = {
    "sgd": functools.partial(lasagne.updates.sgd, learning_rate=0.1),
    "momentum": functools.partial(lasagne.updates.momentum, learning_rate=0.1),
    "nesterov_momentum": functools.partial(lasagne.updates.nesterov_momentum, learning_rate=0.1),
    "adagrad": functools.partial(lasagne.updates.adagrad, learning_rate=0.1),
    "rmsprop": functools.partial(lasagne.updates.rmsprop, learning_rate=0.1),
    "adadelta": lasagne.updates.adadelta,
    "adam": functools.partial(lasagne.updates.adam, learning_rate=0.1),
}
for later in sorted({"adamax", "amsgrad"} & set(lasagne.updates.__all__)):  # of other versions of Lasagne
    RULES[later] = functools.partial(getattr(lasagne.updates, later), learning_rate=0.1)


def _constrained(grads, params):
    return lasagne.updates.sgd(lasagne.updates.total_norm_constraint(grads, 0.5), params, 0.1)


def _norm_constrained(grads, params):
    updates = lasagne.updates.sgd(grads, params, 0.1)
    updates[params[0]] = lasagne.updates.norm_constraint(updates[params[0]], 0.9)
    return updates


def _with_momentum(grads, params):
    return lasagne.updates.apply_momentum(lasagne.updates.sgd(grads, params, 0.1), params)


def _with_nesterov_momentum(grads, params):
    return lasagne.updates.apply_nesterov_momentum(lasagne.updates.rmsprop(grads, params, 0.1), params)


WITH_GRADIENTS = {
    "total_norm_constraint": _constrained,
    "norm_constraint": _norm_constrained,
    "apply_momentum": _with_momentum,
    "apply_nesterov_momentum": _with_nesterov_momentum,
}
