"""Fit Keras models plainly and with a center, in turn, and write down how long a step took.

    platoon launch -n 2 keras_gpu_center_train.py FOLDER CENTER

Started by benchmarks/keras_gpu_center.py, twice: once for each place of the center. The two jobs measure in turn: each
waits for a file that says whose round it is.
"""

# ruff: noqa: I001 - platoon_plugins.keras comes before keras

import argparse
import json
import time
from pathlib import Path

from platoon_plugins.keras import EASGD, distribute
import keras
import numpy as np

from platoon_base import connect

BATCH_SIZE = 32
EVERY, NEVER = 10, 10**9
SKIPPED = 40  # batches at the start of a fit that are not counted
MODELS = {"10 MB": (1024, 1024, 1024, 512, 10), "100 MB": (1024, 4096, 4096, 1024, 10)}
WAYS = {"plain": 0, "never": NEVER, "EASGD": EVERY}  # the batches from one synchronization to the next; 0: no callbacks
DEADLINE_S = 600.0


def wait_for_gpu():
    """Wait for what the back end has queued."""
    if keras.backend.backend() == "torch":
        import torch

        torch.cuda.is_available() and torch.cuda.synchronize()
    elif keras.backend.backend() == "jax":
        import jax

        (jax.device_put(0.0) + 1).block_until_ready()  # behind all else in the stream


class Steps(keras.callbacks.Callback):
    """Keeps the time at the start of each batch; the GPU has done all before at the first counted one and the last."""

    def __init__(self, last):
        super().__init__()
        self.ends, self.begun = (SKIPPED, last), []

    def on_train_batch_begin(self, batch, logs=None):
        if batch in self.ends:
            wait_for_gpu()
        self.begun.append(time.perf_counter())


class Fits:
    """A model for fits alone and one for those of all workers, and the data to fit them to."""

    def __init__(self, worker, units, batches):
        self.worker, self.batches = worker, batches
        # A model that was trained together is refused by a fit of this worker alone.
        self.alone, self.together = self.make(units), self.make(units)
        rng = np.random.default_rng(worker.global_rank)
        rows = (SKIPPED + batches + 1) * BATCH_SIZE
        self.x = rng.standard_normal((rows, units[0]), np.float32)
        self.y = np.eye(units[-1], dtype="float32")[rng.integers(units[-1], size=rows)]

    @staticmethod
    def make(units):
        layers = [keras.layers.Dense(n, activation="relu") for n in units[1:-1]]
        last = keras.layers.Dense(units[-1], activation="softmax")
        model = keras.Sequential([keras.layers.InputLayer((units[0],)), *layers, last])
        model.compile(keras.optimizers.SGD(1e-3), "categorical_crossentropy")
        return model

    def step_s(self, way):
        """Return the mean time of a step, and the median over tens of steps, each with one synchronization."""
        steps, every = Steps(SKIPPED + self.batches), WAYS[way]
        callbacks = distribute([steps], rule=EASGD(), every_n_batches=every) if every else [steps]
        self.worker.barrier(way)
        model = self.together if every else self.alone
        model.fit(self.x, self.y, BATCH_SIZE, 1, verbose=0, shuffle=False, callbacks=callbacks)
        begun = np.array(steps.begun[SKIPPED:])
        return [(begun[-1] - begun[0]) / self.batches, float(np.median(np.diff(begun[::EVERY]))) / EVERY]


def main(args):
    worker = connect()
    folder, taken = Path(args.folder), {}
    fits = {name: Fits(worker, units, args.batches) for name, units in MODELS.items()}
    for number in range(args.rounds + 1):  # round 0 compiles
        deadline = time.monotonic() + DEADLINE_S
        while not (folder / f"go-{args.center}-{number}").exists():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {DEADLINE_S:g} s for round {number}: the other job has failed?")
            time.sleep(0.005)
        for name, fit in fits.items():
            ways = list(WAYS) if number % 2 else list(WAYS)[::-1]
            for way in ways:
                took = fit.step_s(way)
                if number:
                    taken.setdefault(name, {}).setdefault(way, []).append(took)
        worker.barrier(f"round {number}")
        (folder / f"done-{args.center}-{number}-{worker.global_rank}").touch()
    found = {"keras": keras.__version__, "backend": keras.backend.backend(), "step_s": taken}
    (folder / f"{args.center}-{worker.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("center", choices=["device", "host"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batches", type=int, default=200, help="counted in each fit, a multiple of 10")
    main(parser.parse_args())
