"""Fit Keras models on JAX, with averaged gradients or by Keras's DataParallel, and write down how long a step took.

Started by benchmarks/keras_gpu_jax.py: as the script of a job of two workers, each with a GPU, and as one process that
has both. The two measure in turn: each waits for a file that says whose round it is.
"""

# ruff: noqa: I001 - platoon_plugins.keras comes before keras

import argparse
import json
import time
from pathlib import Path

from platoon_plugins.keras import DistributedOptimizer, backends, distribute
import keras
import jax
import numpy as np

from platoon_base import connect

ROWS = 128  # of one GPU
SKIPPED = 40  # batches at the start of a fit that are not counted
MODELS = {"10 MB": (1024, 2), "100 MB": (2048, 6)}  # units of a layer, and how many
WAYS = {"workers": ("alone", "averaged gradients", "by way of the host"), "parallel": ("DataParallel",)}
DEADLINE_S = 600.0


class Steps(keras.callbacks.Callback):
    """Takes the time at a counted batch's begin, with all done before, and at the last one's."""

    def __init__(self, last):
        super().__init__()
        self.times = dict.fromkeys((SKIPPED, last))

    def on_train_batch_begin(self, batch, logs=None):
        if batch in self.times:
            for device in jax.local_devices():
                (jax.device_put(0.0, device) + 1).block_until_ready()  # behind all else in the stream
            self.times[batch] = time.perf_counter()

    def step_s(self):
        """Return the mean of a step between the two."""
        (first, begun), (last, ended) = self.times.items()
        return (ended - begun) / (last - first)


class Fits:
    """One model for each way, and the data to fit them to."""

    def __init__(self, rank, devices, units, layers, batches, role):
        self.batches, self.rows = batches, ROWS * devices
        rng = np.random.default_rng(rank)
        count = (SKIPPED + batches + 1) * self.rows
        self.x = rng.standard_normal((count, units), np.float32)
        self.y = rng.integers(0, 10, count)
        self.models = {way: self.make(units, layers, way) for way in WAYS[role]}

    @staticmethod
    def make(units, layers, way):
        keras.utils.set_random_seed(3)
        dense = [keras.layers.Dense(units, activation="relu") for _ in range(layers)]
        model = keras.Sequential([keras.Input((units,)), *dense, keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.001)
        if way in WAYS["workers"][1:]:
            optimizer = DistributedOptimizer(optimizer)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    def step_s(self, way):
        """Fit for an epoch, and return the mean step."""
        backend = type(backends.current())
        on_device = backend.gradient_device
        steps = Steps(SKIPPED + self.batches)
        callbacks = distribute([steps]) if way in WAYS["workers"][1:] else [steps]
        if way == "by way of the host":
            backend.gradient_device = lambda self, model: None
        try:
            self.models[way].fit(self.x, self.y, self.rows, 1, verbose=0, shuffle=False, callbacks=callbacks)
        finally:
            backend.gradient_device = on_device
        return steps.step_s()


def main(args):
    folder, taken, role = Path(args.folder), {}, args.role
    worker = connect() if role == "workers" else None
    rank = worker.global_rank if worker else 0
    if role == "parallel":
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
    devices = len(jax.local_devices())
    fits = {name: Fits(rank, devices, *shape, args.batches, role) for name, shape in MODELS.items()}
    for number in range(args.rounds + 1):  # round 0 compiles
        deadline = time.monotonic() + DEADLINE_S
        while not (folder / f"go-{role}-{number}").exists():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {DEADLINE_S:g} s for round {number}: the other job has failed?")
            time.sleep(0.005)
        for name, fit in fits.items():
            for way in WAYS[role] if number % 2 else WAYS[role][::-1]:
                if worker:
                    worker.barrier(f"{name}, {way}")
                took = fit.step_s(way)
                if number:
                    taken.setdefault(name, {}).setdefault(way, []).append(took)
                print(name, number, way, round(1e3 * took, 3), flush=True)
        (folder / f"done-{role}-{number}-{rank}").touch()
    weights = {
        name: {way: float(sum(np.abs(w).sum() for w in model.get_weights())) for way, model in fit.models.items()}
        for name, fit in fits.items()
    }
    versions = {"keras": keras.__version__, "jax": jax.__version__, "gpu": jax.local_devices()[0].device_kind}
    found = {"versions": versions, "devices": devices, "step_s": taken, "weights": weights}
    (folder / f"{role}-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("role", choices=list(WAYS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=200, help="counted in each fit")
    main(parser.parse_args())
