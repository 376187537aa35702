"""Fit Keras models plainly and in the ways of platoon_plugins.keras, in turn, and write down when each batch began.

    platoon launch -n 2 keras_train.py FOLDER

Started by benchmarks/keras_fit.py. All workers make the same fits at the same time, each on data of its own.
"""

# ruff: noqa: I001 - platoon_plugins.keras comes before keras

import argparse
import json
import time
from functools import partial
from pathlib import Path

from platoon_plugins.keras import EASGD, DistributedOptimizer, distribute
import keras
import numpy as np

from platoon_base import connect
from platoon_base.worker import FlatAllReduce

BATCH_SIZE = 32
EVERY, NEVER = 10, 10**9
# Batches of an epoch with our hooks, or without them, and how many of their first ones are not counted: JAX lets 32
# wait before it paces the loop.
SETTLING = 40 if keras.backend.backend() == "jax" else 5
BLOCK = SETTLING + 20
OTHER_FLOATS = 30_000_000  # more than a cache holds
SHORT = 5  # batches of an epoch whose end is measured
MODELS = {"small": (64, 64, 10), "10 MB": (1024, 1024, 1024, 512, 10)}
# The options of distribute(), or None for the plain fit; and whether the optimizer is distributed.
WAYS = {
    "plain": (None, False),
    "plain again": (None, False),  # what this shows is noise
    "callbacks": ({"rule": EASGD(), "every_n_batches": NEVER}, False),
    "EASGD": ({"rule": EASGD(), "every_n_batches": EVERY}, False),
    "averaged gradients": ({"rule": None}, True),
}


class Begins(keras.callbacks.Callback):
    """Keeps time and CPU time at the start of each batch; a hook at their ends would change Keras's ways."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_begin(self, batch, logs=None):
        self.epochs[-1].append((time.perf_counter(), time.process_time()))


class Switch:
    """Makes our first callback deaf to the batches of every other block: their steps are plain ones."""

    def __init__(self, ours):
        self.begun, self.inside = [], 0.0
        self.on_begin, self.on_end = ours.on_train_batch_begin, ours.on_train_batch_end
        ours.on_train_batch_begin = self.begin
        # Where ours has no hook of its own, Keras does not look at the ends of batches.
        if type(ours).on_train_batch_end is not keras.callbacks.Callback.on_train_batch_end:
            ours.on_train_batch_end = self.end

    def begin(self, batch, logs=None):
        self.begun.append((time.perf_counter(), time.process_time()))
        if self.handles(batch):
            self.on_begin(batch, logs)
            self.inside += time.perf_counter() - self.begun[-1][0]

    def end(self, batch, logs=None):
        if self.handles(batch):
            begin = time.perf_counter()
            self.on_end(batch, logs)
            self.inside += time.perf_counter() - begin

    def handles(self, batch):
        return batch // BLOCK % 2


def build(units, averaged):
    """Return a compiled model of dense layers, of units[0] inputs."""
    layers = [keras.layers.Dense(n, activation="relu") for n in units[1:-1]]
    last = keras.layers.Dense(units[-1], activation="softmax")
    model = keras.Sequential([keras.layers.InputLayer((units[0],)), *layers, last])
    optimizer = keras.optimizers.SGD(1e-3)
    model.compile(
        DistributedOptimizer(optimizer) if averaged else optimizer,
        loss="categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


class Fits:
    """A model for fits alone, one for rules, one with a distributed optimizer, and the data to fit them to."""

    def __init__(self, worker, units, skipped, batches):
        self.worker, self.skipped = worker, skipped
        # A model that was trained together is refused by a fit of this worker alone.
        self.models = {kind: build(units, averaged=kind == "averaged") for kind in ("alone", "rule", "averaged")}
        self.weights = sum(w.size for w in self.models["alone"].get_weights())
        rng = np.random.RandomState(worker.global_rank)
        self.x = rng.randn((skipped + batches + 1) * BATCH_SIZE, units[0]).astype("float32")
        self.y = np.eye(units[-1], dtype="float32")[rng.randint(units[-1], size=len(self.x))]

    def fit(self, way, epochs, batches):
        """Return the begins of all batches, one list an epoch."""
        options, averaged = WAYS[way]
        begins = Begins()
        callbacks = [begins] if options is None else distribute([begins], **options)
        rows = slice(batches * BATCH_SIZE)
        self.worker.barrier(way)
        kind = "alone" if options is None else "averaged" if averaged else "rule"
        self.models[kind].fit(
            self.x[rows], self.y[rows], BATCH_SIZE, epochs, verbose=0, shuffle=False, callbacks=callbacks
        )
        return begins.epochs

    def step_s(self, way, batches):
        """Return time and CPU time of a batch in one epoch, but for its first ones: medians over tens of batches."""
        (begins,) = self.fit(way, 1, self.skipped + batches + 1)
        tens = np.diff(np.array(begins[self.skipped :: EVERY]), axis=0)  # each with one synchronization
        return (np.median(tens, 0) / EVERY).tolist()

    def in_blocks_s(self, way, pairs):
        """Return times and CPU times of a batch, in blocks of one epoch: with our hooks, and in its neighbours."""
        options, averaged = WAYS[way]
        pairs //= BLOCK // 25  # longer ones need not be as many
        callbacks = distribute([], **options)
        switch, batches = Switch(callbacks[0]), (2 * pairs + 1) * BLOCK + 1
        rows = np.arange(batches * BATCH_SIZE) % len(self.x)
        self.worker.barrier(way)
        self.models["averaged" if averaged else "rule"].fit(
            self.x[rows], self.y[rows], BATCH_SIZE, 1, verbose=0, shuffle=False, callbacks=callbacks
        )
        begun = np.array(switch.begun)
        ends = np.arange(BLOCK, len(begun), BLOCK)
        blocks = (begun[ends] - begun[ends - BLOCK + SETTLING]) / (BLOCK - SETTLING)
        with_ours = range(1, len(blocks) - 1, 2)
        return {
            "pairs": [(blocks[i].tolist(), ((blocks[i - 1] + blocks[i + 1]) / 2).tolist()) for i in with_ours],
            "in_hooks": switch.inside / (len(with_ours) * BLOCK),
        }

    def between_epochs_s(self, way, epochs):
        """Return the median times from the begin of an epoch's last batch to that of the next epoch's first one."""
        begun = self.fit(way, epochs, SHORT)
        return np.median(
            np.array([after[0] for after in begun[1:]]) - [before[-1] for before in begun[:-1]], 0
        ).tolist()


def in_pairs(measure, ways, rounds):
    """Call measure(way) and measure("plain") one behind the other, each being the first in turn."""
    pairs = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways:
            both = (way, "plain") if number % 2 else ("plain", way)
            took = {each: measure(each) for each in both}
            pairs[way].append((took[way], took["plain"]))
    return pairs


def all_reduce_s(worker, size, repeats):
    """Return the median time of the bare call on as many floats."""
    array, took = np.ones(size, np.float32), []
    for _ in range(repeats):
        worker.barrier("all-reduce")
        begin = time.perf_counter()
        worker.all_reduce(array, "mean", dest=array)
        took.append(time.perf_counter() - begin)
    return float(np.median(took))


def cold_all_reduce_s(worker, weights, repeats):
    """Return the median time for arrays of these weights' shapes, as a step has them: not in the processor's cache."""
    arrays, other = [np.ones_like(weight) for weight in weights], np.ones(OTHER_FLOATS, np.float32)
    reduce, took = FlatAllReduce(worker), []
    for _ in range(repeats):
        for array in (other, *arrays):
            array += 1
        other += 1
        worker.barrier("cold all-reduce")
        begin = time.perf_counter()
        reduce(arrays, "mean")
        took.append(time.perf_counter() - begin)
    return float(np.median(took))


def main(args):
    worker = connect()
    result = {"rank": worker.global_rank, "keras": keras.__version__, "backend": keras.backend.backend(), "models": {}}
    for name, units in MODELS.items():
        batches = args.batches * (args.small_times if name == "small" else 1)
        fits = Fits(worker, units, args.skipped, batches)
        ways = [way for way in WAYS if way != "plain"]
        for way in WAYS:
            fits.fit(way, 2, SHORT)  # compiles
        result["models"][name] = {
            "parameters": int(fits.weights),
            "step_s": in_pairs(partial(fits.step_s, batches=batches), ways, args.rounds),
            "between_epochs_s": in_pairs(partial(fits.between_epochs_s, epochs=5), ways, args.rounds),
            "blocks_s": {way: fits.in_blocks_s(way, args.blocks) for way in ("callbacks", "EASGD")},
            "all_reduce_s": all_reduce_s(worker, fits.weights, 31),
            "cold_all_reduce_s": cold_all_reduce_s(worker, fits.models["rule"].get_weights(), 31),
        }
    Path(args.folder, f"{worker.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where one JSON file for each worker goes")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--skipped", type=int, default=40, help="batches at the start of an epoch that do not count")
    parser.add_argument("--blocks", type=int, default=40, help="pairs of blocks of one epoch")
    parser.add_argument("--batches", type=int, default=40, help="a multiple of 10, counted in each epoch")
    parser.add_argument("--small-times", type=int, default=4, help="so many times more batches of the small model")
    main(parser.parse_args())
