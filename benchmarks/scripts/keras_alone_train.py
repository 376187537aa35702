"""Fit Keras models, plainly or as the only worker of a job, and write down how long steps and ends of epochs took.

    python keras_alone_train.py FOLDER plain
    platoon launch -n 1 keras_alone_train.py FOLDER launched

Started by benchmarks/keras_alone.py, both at once. They measure in turn: each waits for a file that says whose round
it is. The plain one knows nothing of this project.
"""

import argparse
import json
import time
from pathlib import Path

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("folder")
arguments.add_argument("process", choices=["plain", "launched"])
arguments.add_argument("--rounds", type=int, default=50)
arguments.add_argument("--batches", type=int, default=50, help="that are counted in a fit")
# JAX lets 32 wait before it paces the loop.
arguments.add_argument("--skipped", type=int, default=40, help="mini-batches before them")
args = arguments.parse_args()

if args.process == "launched":  # platoon_plugins.keras comes before keras
    from platoon_plugins.keras import DistributedOptimizer, distribute
import keras  # noqa: E402
import numpy as np  # noqa: E402

BATCH_SIZE = 128
VALIDATION_BATCHES = 5
WAYS = {"plain": ["plain"], "launched": ["callbacks", "averaged gradients"]}[args.process]
DEADLINE_S = 600.0


def wait_for_device():
    """Wait for what the back end has queued."""
    if keras.backend.backend() == "torch":
        import torch

        torch.cuda.is_available() and torch.cuda.synchronize()
    elif keras.backend.backend() == "jax":
        import jax

        (jax.device_put(0.0) + 1).block_until_ready()  # behind all else in the stream


class Begins(keras.callbacks.Callback):
    """Keeps time and CPU time at the begins of the first and the last counted batch, and of the next epoch's first one.

    At each of them the device has done all before.
    """

    def __init__(self):
        super().__init__()
        self.epoch, self.at = 0, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0 if self.epoch else batch in (args.skipped, args.skipped + args.batches):
            wait_for_device()
            self.at.append((time.perf_counter(), time.process_time()))


def dense():
    """10 MB of weights in four layers."""
    layers = [keras.layers.Dense(units, activation="relu") for units in (1024, 1024, 512)]
    return (1024,), [*layers, keras.layers.Dense(10, activation="softmax")]


def convolutional():
    """The network of Keras's example simple_mnist_convnet."""
    layers = []
    for filters in (32, 64):
        layers += [keras.layers.Conv2D(filters, 3, activation="relu"), keras.layers.MaxPooling2D(2)]
    return (28, 28, 1), [
        *layers, keras.layers.Flatten(), keras.layers.Dropout(0.5), keras.layers.Dense(10, activation="softmax")
    ]  # fmt: skip


class Fits:
    """A model for each way, and the data to fit them to."""

    def __init__(self, architecture):
        rng = np.random.default_rng(1)
        shape, _ = architecture()
        rows = (args.skipped + args.batches + 1 + VALIDATION_BATCHES) * BATCH_SIZE
        x = rng.standard_normal((rows, *shape), np.float32)
        y = np.eye(10, dtype="float32")[rng.integers(10, size=rows)]
        last = VALIDATION_BATCHES * BATCH_SIZE
        self.train, self.valid = (x[last:], y[last:]), (x[:last], y[:last])
        # A model that was trained together is refused by a fit of this worker alone.
        self.models = {way: self.make(architecture, way == "averaged gradients") for way in WAYS}

    @staticmethod
    def make(architecture, averaged):
        shape, layers = architecture()
        model = keras.Sequential([keras.layers.InputLayer(shape), *layers])
        optimizer = keras.optimizers.Adam()
        model.compile(
            DistributedOptimizer(optimizer) if averaged else optimizer, "categorical_crossentropy", metrics=["accuracy"]
        )
        return model

    def times(self, way):
        """Return time and CPU time of a step, and of the rest: the last step, validation, the end of the epoch."""
        begins = Begins()
        callbacks = [begins] if way == "plain" else distribute([begins])
        self.models[way].fit(*self.train, BATCH_SIZE, 2, verbose=0, callbacks=callbacks, validation_data=self.valid)
        first, last, after = map(np.array, begins.at)
        return {"step_s": ((last - first) / args.batches).tolist(), "end_s": (after - last).tolist()}


def main():
    folder, taken = Path(args.folder), {}
    fits = {"10 MB": Fits(dense), "convolutional": Fits(convolutional)}
    for number in range(args.rounds + 1):  # round 0 compiles
        for name, fit in fits.items():
            deadline = time.monotonic() + DEADLINE_S
            while not (folder / f"go-{args.process}-{name}-{number}").exists():
                if time.monotonic() > deadline:
                    raise SystemExit(f"waited {DEADLINE_S:g} s for round {number}: the other process has failed?")
                time.sleep(0.002)
            for way in WAYS if number % 2 else WAYS[::-1]:
                took = fit.times(way)
                if number:
                    taken.setdefault(name, {}).setdefault(way, []).append(took)
            (folder / f"done-{args.process}-{name}-{number}").touch()
    found = {"keras": keras.__version__, "backend": keras.backend.backend(), "times": taken}
    (folder / f"{args.process}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
