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
from learning_networks import build
from learning_run import parse, write
from learning_tasks import TASKS
from platoon_base import connect

EMA_MOMENTUM = 0.99  # the average is over the latest hundred steps or so


class Curve(keras.callbacks.Callback):
    """Keeps steps, seconds and the accuracy, or bits, on all validation rows, at the end of each epoch.

    Steps are those of this worker. Seconds, which include validation, begin with its second step: the first one may
    compile.
    """

    def __init__(self, bits):
        super().__init__()
        self.bits, self.steps, self.points = bits, 0, []

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
        if self.steps <= 2:
            self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        value = logs["val_loss"] / math.log(2) if self.bits else logs["val_accuracy"]
        self.points.append((self.steps, time.perf_counter() - self.began, float(value)))


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


def callbacks_of(method, mine):
    """Return the callbacks of a method, with one's own."""
    if method.rule == ALONE:
        return mine
    if method.rule in (DEFAULTS, AVERAGED):
        return distribute(mine)
    return distribute(mine, rule=method.rule(), every_n_batches=method.every_n_batches)


def pieces(x, y, batch_size, count):
    """Return rows of a whole number of mini-batches in each of so many epochs of one pass, and that number."""
    steps = max(1, math.ceil(len(x) / batch_size) // count)
    rows = count * steps * batch_size
    return (x[:rows], y[:rows]), steps


def optimizer_of(task, rate, averages):
    """Return the task's optimizer, with an average of the weights if a method wants one."""
    average = {"use_ema": True, "ema_momentum": EMA_MOMENTUM} if averages else {}
    if task.optimizer == "sgd":
        return keras.optimizers.SGD(rate, momentum=0.9, **average)
    return keras.optimizers.Adam(rate, **average)


def main(args):
    worker, task, method = connect(), TASKS[args.task], METHODS[args.method]
    training, validation = task.data()
    if not task.lower:
        training, validation = ((x.reshape(-1, *task.network.inputs), y) for x, y in (training, validation))
    getattr(keras.utils, "set_random_seed", np.random.seed)(args.seed)  # Keras 2 on Theano knows NumPy's alone
    model, curve = build(task.network), Curve(task.lower)
    optimizer = optimizer_of(task, args.rate, method.averages)
    model.compile(
        DistributedOptimizer(optimizer) if method.rule == AVERAGED else optimizer,
        loss="sparse_categorical_crossentropy" if task.lower else "categorical_crossentropy",
        metrics=None if task.lower else ["accuracy"],
    )
    rows, steps = shard(*training, reshuffle=task.validations == 1), None
    mine = [curve, *([keras.callbacks.SwapEMAWeights()] if method.averages else ())]
    halves = args.slow is not None and worker.global_rank == args.slow
    if halves:
        mine.append(Slow())
    if task.validations > 1 or (halves and not method.waits):
        count = task.validations * (2 if halves and not method.waits else 1)
        rows, steps = pieces(*rows, task.batch_size, count)
    model.fit(
        *rows,
        validation_data=shard(*validation),
        batch_size=task.batch_size,
        epochs=args.epochs * task.validations,
        steps_per_epoch=steps,
        callbacks=callbacks_of(method, mine),
        verbose=0,
    )
    parameters = sum(int(np.prod(weights.shape)) for weights in model.get_weights())
    ends = args.epochs * task.validations
    write(args, worker, f"Keras {keras.__version__}", parameters, curve.points, ends=ends)


if __name__ == "__main__":
    main(parse(__doc__))
