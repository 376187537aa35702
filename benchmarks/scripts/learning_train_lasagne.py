"""Train one task by one method in Lasagne, and write down what each validation gave.

    platoon launch -n 2 learning_train_lasagne.py FILE --task digits --method easgd-10 --rate 0.01 --seed 1 --epochs 5

Started by benchmarks/learning.py. Rank 0 writes the file.
"""

# ruff: noqa: I001 - platoon_plugins.lasagne comes before lasagne

import math
import time
from itertools import islice

from platoon_plugins.lasagne import all_reduce_grads, evaluate, finish_training, iterate_minibatches, sync_updates
import lasagne
import numpy as np
import theano
import theano.tensor as T
from lasagne.layers import (
    Conv2DLayer,
    DenseLayer,
    DimshuffleLayer,
    DropoutLayer,
    EmbeddingLayer,
    InputLayer,
    LSTMLayer,
    MaxPool2DLayer,
    ReshapeLayer,
    count_params,
    get_all_params,
    get_output,
)

from learning_methods import ALONE, AVERAGED, DEFAULTS, METHODS
from learning_run import parse, write
from learning_tasks import TASKS
from platoon_base import connect

LARGEST_GRADIENT = 5.0  # norm of all gradients of the LSTM together
VALIDATION_ROWS = 500  # in one call


def build(network, x):
    if not hasattr(network, "units"):
        return build_feedforward(network, x)
    layer = EmbeddingLayer(InputLayer((None, network.length), x), network.classes, network.embedding)
    layer = ReshapeLayer(LSTMLayer(layer, network.units, precompute_input=True), (-1, network.units))
    return DenseLayer(layer, network.classes, nonlinearity=lasagne.nonlinearities.softmax)


def build_feedforward(network, x):
    layer = InputLayer((None, *network.inputs), x)
    if network.filters:
        layer = DimshuffleLayer(layer, (0, 3, 1, 2))
    for filters in network.filters:
        layer = MaxPool2DLayer(Conv2DLayer(layer, filters, 3), 2)
    for units in network.dense:
        layer = DenseLayer(layer, units)
    if network.dropout:
        layer = DropoutLayer(layer, network.dropout)
    return DenseLayer(layer, network.classes, nonlinearity=lasagne.nonlinearities.softmax)


def value_of(task, output, y):
    """Return accuracy, or bits for each character."""
    if not task.lower:
        return T.eq(output.argmax(axis=1), y.argmax(axis=1)).mean(dtype=theano.config.floatX)
    return lasagne.objectives.categorical_crossentropy(output, y.flatten()).mean() / np.float32(math.log(2))


def updates_of(method, rate, loss, params, clips):
    """Return the updates of a method: its gradients, Adam, its synchronization."""
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
    """Return the parameters, the training function and the validation function."""
    x, y = (theano.tensor.TensorType(array.dtype, (False,) * array.ndim)() for array in rows)
    network = build(task.network, x)
    params = get_all_params(network, trainable=True)
    output, predicted = get_output(network), get_output(network, deterministic=True)
    labels = y.flatten() if task.lower else y
    loss = lasagne.objectives.categorical_crossentropy(output, labels).mean()
    updates = updates_of(method, rate, loss, params, clips=task.lower)
    train = theano.function([x, y], [], updates=updates)
    return int(count_params(network)), train, theano.function([x, y], value_of(task, predicted, y))


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


def main(args):
    worker, task, method = connect(), TASKS[args.task], METHODS[args.method]
    rows, validation = task.data()
    if not task.lower:
        rows, validation = ((x.reshape(-1, *task.network.inputs), y) for x, y in (rows, validation))
    lasagne.random.set_rng(np.random.RandomState(args.seed))
    parameters, train, value = compile_functions(task, method, args.rate, rows)
    slow = worker.global_rank == args.slow
    steps, points, began = 0, [], 0.0
    for epoch in range(1, args.epochs + 1):
        worker.progress(epoch=epoch)
        for part in batches(rows, task, method, epoch, slow):
            for batch in part:
                start = time.perf_counter()
                if steps == 1:
                    began = start
                train(*batch)
                time.sleep(args.pause_ms / 1e3)
                steps += 1
                if slow:
                    time.sleep(time.perf_counter() - start)
            points.append((steps, 0.0, float(evaluate(value, *validation, batch_size=VALIDATION_ROWS))))
            points[-1] = (steps, time.perf_counter() - began, points[-1][2])
    finish_training()
    write(args, worker, f"Lasagne {lasagne.__version__}", parameters, points, ends=1)


if __name__ == "__main__":
    main(parse(__doc__))
