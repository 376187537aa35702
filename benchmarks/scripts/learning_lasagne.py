"""Train one task of ../learning.py by one method in Lasagne, and write down what each validation gave."""

# ruff: noqa: I001 - platoon_plugins.lasagne comes before lasagne

import math
import time
from itertools import islice

from platoon_plugins.lasagne import all_reduce_grads, evaluate, finish_training, iterate_minibatches, sync_updates
import harness
import lasagne
import numpy as np
import theano
import theano.tensor as T
from lasagne import layers

from learning_tasks import ALONE, AVERAGED, DEFAULTS, METHODS, TASKS, give
from platoon_base import connect

LARGEST_GRADIENT = 5.0  # norm of all gradients of the LSTM together
VALIDATION_ROWS = 500  # in one call


def build(network, x):
    if not hasattr(network, "units"):
        return build_feedforward(network, x)
    layer = layers.EmbeddingLayer(layers.InputLayer((None, network.length), x), network.classes, network.embedding)
    layer = layers.ReshapeLayer(layers.LSTMLayer(layer, network.units, precompute_input=True), (-1, network.units))
    return layers.DenseLayer(layer, network.classes, nonlinearity=lasagne.nonlinearities.softmax)


def build_feedforward(network, x):
    layer = layers.InputLayer((None, *network.inputs), x)
    if network.filters:
        layer = layers.DimshuffleLayer(layer, (0, 3, 1, 2))
    for filters in network.filters:
        layer = layers.MaxPool2DLayer(layers.Conv2DLayer(layer, filters, 3), 2)
    for units in network.dense:
        layer = layers.DenseLayer(layer, units)
    if network.dropout:
        layer = layers.DropoutLayer(layer, network.dropout)
    return layers.DenseLayer(layer, network.classes, nonlinearity=lasagne.nonlinearities.softmax)


def value_of(task, output, y):
    if not task.lower:
        return T.eq(output.argmax(axis=1), y.argmax(axis=1)).mean(dtype=theano.config.floatX)
    return lasagne.objectives.categorical_crossentropy(output, y.flatten()).mean() / np.float32(math.log(2))


def updates_of(method, rate, loss, params, clips):
    grads = all_reduce_grads(loss, params) if method.rule == AVERAGED else theano.grad(loss, params)
    if clips:
        grads = lasagne.updates.total_norm_constraint(grads, LARGEST_GRADIENT)
    updates = lasagne.updates.adam(grads, params, rate)
    if method.rule == ALONE:
        return updates
    if method.rule in (DEFAULTS, AVERAGED):
        return sync_updates(updates, params)
    return sync_updates(updates, params, method.rule(), method.every_n_batches)


def compile_functions(task, method, rate, rows):
    x, y = (theano.tensor.TensorType(array.dtype, (False,) * array.ndim)() for array in rows)
    network = build(task.network, x)
    params = layers.get_all_params(network, trainable=True)
    output, predicted = layers.get_output(network), layers.get_output(network, deterministic=True)
    labels = y.flatten() if task.lower else y
    loss = lasagne.objectives.categorical_crossentropy(output, labels).mean()
    updates = updates_of(method, rate, loss, params, clips=task.lower)
    train = theano.function([x, y], [], updates=updates)
    return int(layers.count_params(network)), train, theano.function([x, y], value_of(task, predicted, y))


def batches(rows, task, method, epoch, slow):
    """Yield an epoch's mini-batches of this worker, a part for each validation.

    They are half as many, if it is slow and nobody waits for it.
    """
    uneven = "drop" if method.waits else "keep"
    found = iterate_minibatches(*rows, task.batch_size, shuffle=True, epoch=epoch, uneven=uneven)
    mine = math.ceil(len(rows[0]) / connect().global_size / task.batch_size)
    if slow and not method.waits:
        mine = max(1, mine // 2)
        found = islice(found, mine)
    for _ in range(task.validations - 1):
        yield islice(found, mine // task.validations)
    yield found


def main(given):
    worker, task, method = connect(), TASKS[given.task], METHODS[given.method]
    rows, validation = task.data()
    if not task.lower:
        rows, validation = ((x.reshape(-1, *task.network.inputs), y) for x, y in (rows, validation))
    lasagne.random.set_rng(np.random.RandomState(given.seed))
    parameters, train, value = compile_functions(task, method, given.rate, rows)
    slow = worker.global_rank == given.slow
    steps, points, began = 0, [], 0.0
    for epoch in range(1, given.epochs + 1):
        worker.progress(epoch=epoch)
        for part in batches(rows, task, method, epoch, slow):
            for batch in part:
                start = time.perf_counter()
                if steps == 1:
                    began = start
                train(*batch)
                time.sleep(given.__dict__.get("pause_ms", 0) / 1e3)
                steps += 1
                if slow:
                    time.sleep(time.perf_counter() - start)
            points.append((steps, 0.0, float(evaluate(value, *validation, batch_size=VALIDATION_ROWS))))
            points[-1] = (steps, time.perf_counter() - began, points[-1][2])
    finish_training()
    give(given, worker, f"Lasagne {lasagne.__version__}", parameters, points, ends=1)


if __name__ == "__main__":
    main(harness.given())
