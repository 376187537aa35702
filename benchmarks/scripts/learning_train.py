"""Train one task by one method in Keras, and write down what each validation gave.

    platoon launch -n 2 learning_train.py FILE --task digits --method easgd-10 --rate 0.01 --seed 1 --epochs 5

Started by benchmarks/learning.py. Rank 0 writes the file.
"""

# ruff: noqa: I001 - platoon_plugins.keras comes before keras

import math
import time

from platoon_plugins.keras import DistributedOptimizer, distribute, shard
import keras
import numpy as np

from learning_methods import ALONE, AVERAGED, DEFAULTS, METHODS
from learning_run import parse, write
from learning_tasks import TASKS
from platoon_base import connect

EMA_MOMENTUM = 0.99  # the average is over the latest hundred steps or so


class Curve(keras.callbacks.Callback):
    """Keeps steps, seconds and the accuracy on all validation rows, at the end of each epoch.

    Steps are those of this worker. Seconds, which include validation, begin with its second step: the first one may
    compile.
    """

    def __init__(self):
        super().__init__()
        self.steps, self.points = 0, []

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
        if self.steps <= 2:
            self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.points.append((self.steps, time.perf_counter() - self.began, float(logs["val_accuracy"])))


class Slow(keras.callbacks.Callback):
    """Makes mini-batches take twice as long; a load, no synchronization.

    It waits at the start of the next one: a hook at their ends would change how Keras treats them.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self.last = None

    def on_train_batch_begin(self, batch, logs=None):
        if self.last is not None:
            time.sleep(time.perf_counter() - self.last)
        self.last = time.perf_counter()


def build(network):
    layers = [keras.layers.InputLayer(network.inputs)]
    for filters in network.filters:
        layers += [keras.layers.Conv2D(filters, 3, activation="relu"), keras.layers.MaxPooling2D(2)]
    layers += [keras.layers.Flatten()] * bool(network.filters)
    layers += [keras.layers.Dense(units, activation="relu") for units in network.dense]
    layers += [keras.layers.Dropout(network.dropout)] * bool(network.dropout)
    return keras.Sequential([*layers, keras.layers.Dense(network.classes, activation="softmax")])


def callbacks_of(method, mine):
    """Return the callbacks of a method, with one's own."""
    if method.rule == ALONE:
        return mine
    if method.rule in (DEFAULTS, AVERAGED):
        return distribute(mine)
    return distribute(mine, rule=method.rule(), every_n_batches=method.every_n_batches)


def half(x, y, batch_size):
    """Return rows of an even number of mini-batches, and half that number: two epochs are one pass over them."""
    steps = max(1, math.ceil(len(x) / batch_size) // 2)
    rows = 2 * steps * batch_size
    return (x[:rows], y[:rows]), steps


def main(args):
    worker, task, method = connect(), TASKS[args.task], METHODS[args.method]
    training, validation = ((x.reshape(-1, *task.network.inputs), y) for x, y in task.data())
    getattr(keras.utils, "set_random_seed", np.random.seed)(args.seed)  # Keras 2 on Theano knows NumPy's alone
    model, curve = build(task.network), Curve()
    average = {"use_ema": True, "ema_momentum": EMA_MOMENTUM} if method.averages else {}
    optimizer = keras.optimizers.Adam(args.rate, **average)
    model.compile(
        DistributedOptimizer(optimizer) if method.rule == AVERAGED else optimizer,
        loss="categorical_crossentropy",
        metrics=["accuracy"],
    )
    rows, steps, mine = shard(*training), None, [curve, *([keras.callbacks.SwapEMAWeights()] if average else ())]
    if worker.global_rank == args.slow:
        mine.append(Slow())
        if not method.waits:
            rows, steps = half(*rows, task.batch_size)
    model.fit(
        *rows,
        validation_data=shard(*validation),
        batch_size=task.batch_size,
        epochs=args.epochs,
        steps_per_epoch=steps,
        callbacks=callbacks_of(method, mine),
        verbose=0,
    )
    parameters = sum(int(np.prod(weights.shape)) for weights in model.get_weights())
    write(args, worker, f"Keras {keras.__version__}", parameters, curve.points, ends=args.epochs)


if __name__ == "__main__":
    main(parse(__doc__))
