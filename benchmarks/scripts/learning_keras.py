"""Train one task of ../learning.py by one method in Keras, and write down what each validation gave."""

# ruff: noqa: I001 - platoon_plugins.keras comes before keras

import math
import time

from platoon_plugins.keras import DistributedOptimizer, distribute, shard
import harness
import keras
import numpy as np

from learning_tasks import ALONE, AVERAGED, DEFAULTS, METHODS, TASKS, Network, Residual, Transformer, give
from platoon_base import connect

EMA_MOMENTUM = 0.99  # the average is over the latest hundred steps or so
HEADS = 4


def build(network):
    return {Network: layered, Residual: residual, Transformer: transformer}[type(network)](network)


def layered(network):
    layers = [keras.layers.InputLayer(network.inputs)]
    for filters in network.filters:
        layers += [keras.layers.Conv2D(filters, 3, activation="relu"), keras.layers.MaxPooling2D(2)]
    layers += [keras.layers.Flatten()] * bool(network.filters)
    layers += [keras.layers.Dense(units, activation="relu") for units in network.dense]
    layers += [keras.layers.Dropout(network.dropout)] * bool(network.dropout)
    return keras.Sequential([*layers, keras.layers.Dense(network.classes, activation="softmax")])


def residual(network):
    """ResNet of two convolutions in each block, 6n + 2 layers for n blocks in a stage (1512.03385, section 4.2)."""
    inputs = keras.Input(network.inputs)
    seen = normalized(inputs, network.filters[0])
    for stage, filters in enumerate(network.filters):
        for block in range(network.blocks):
            stride = 2 if stage and not block else 1
            found = normalized(normalized(seen, filters, stride), filters, relu=False)
            if stride > 1 or seen.shape[-1] != filters:
                seen = keras.layers.Conv2D(filters, 1, stride, use_bias=False)(seen)
            seen = keras.layers.ReLU()(keras.layers.Add()([seen, found]))
    seen = keras.layers.GlobalAveragePooling2D()(seen)
    return keras.Model(inputs, keras.layers.Dense(network.classes, activation="softmax")(seen))


def normalized(seen, filters, stride=1, relu=True):
    seen = keras.layers.Conv2D(filters, 3, stride, "same", use_bias=False, kernel_initializer="he_normal")(seen)
    seen = keras.layers.BatchNormalization(momentum=0.9)(seen)
    return keras.layers.ReLU()(seen) if relu else seen


def transformer(network):
    """Blocks of causal attention and a relu layer four times as wide, normalized before each."""
    width, inputs = network.width, keras.Input((network.length,), dtype="int32")
    places = keras.ops.cumsum(keras.ops.ones_like(inputs), axis=1) - 1  # a part of the graph, as parameters follow
    seen = keras.layers.Embedding(network.classes, width)(inputs)
    seen = seen + keras.layers.Embedding(network.length, width)(places)
    for _ in range(network.blocks):
        found = keras.layers.LayerNormalization()(seen)
        attention = keras.layers.MultiHeadAttention(HEADS, width // HEADS)
        seen = seen + attention(found, found, use_causal_mask=True)
        found = keras.layers.Dense(4 * width, "relu")(keras.layers.LayerNormalization()(seen))
        seen = seen + keras.layers.Dense(width)(found)
    seen = keras.layers.LayerNormalization()(seen)
    return keras.Model(inputs, keras.layers.Dense(network.classes, "softmax")(seen))


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
    if method.rule == ALONE:
        return mine
    if method.rule in (DEFAULTS, AVERAGED):
        return distribute(mine)
    return distribute(mine, rule=method.rule(), every_n_batches=method.every_n_batches)


def pieces(x, y, batch_size, count):
    steps = max(1, math.ceil(len(x) / batch_size) // count)
    rows = count * steps * batch_size
    return (x[:rows], y[:rows]), steps


def optimizer_of(task, rate, averages):
    average = {"use_ema": True, "ema_momentum": EMA_MOMENTUM} if averages else {}
    if task.optimizer == "sgd":
        return keras.optimizers.SGD(rate, momentum=0.9, **average)
    return keras.optimizers.Adam(rate, **average)


def main(given):
    worker, task, method = connect(), TASKS[given.task], METHODS[given.method]
    training, validation = task.data()
    if not task.lower:
        training, validation = ((x.reshape(-1, *task.network.inputs), y) for x, y in (training, validation))
    getattr(keras.utils, "set_random_seed", np.random.seed)(given.seed)  # Keras 2 on Theano knows NumPy's alone
    model, curve = build(task.network), Curve(task.lower)
    optimizer = optimizer_of(task, given.rate, method.averages)
    model.compile(
        DistributedOptimizer(optimizer) if method.rule == AVERAGED else optimizer,
        loss="sparse_categorical_crossentropy" if task.lower else "categorical_crossentropy",
        metrics=None if task.lower else ["accuracy"],
    )
    rows, steps = shard(*training, reshuffle=task.validations == 1), None
    mine = [curve, *([keras.callbacks.SwapEMAWeights()] if method.averages else ())]
    halves = given.slow is not None and worker.global_rank == given.slow
    if halves:
        mine.append(Slow())
    if task.validations > 1 or (halves and not method.waits):
        count = task.validations * (2 if halves and not method.waits else 1)
        rows, steps = pieces(*rows, task.batch_size, count)
    ends = given.epochs * task.validations
    how = {"validation_data": shard(*validation), "batch_size": task.batch_size, "epochs": ends, "verbose": 0}
    model.fit(*rows, steps_per_epoch=steps, callbacks=callbacks_of(method, mine), **how)
    parameters = sum(int(np.prod(weights.shape)) for weights in model.get_weights())
    give(given, worker, f"Keras {keras.__version__}", parameters, curve.points, ends=ends)


if __name__ == "__main__":
    main(harness.given())
