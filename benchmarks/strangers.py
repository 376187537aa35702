"""What ordinary scripts cost on two workers: memory, the wait for the first step of an epoch, steps per second.

Each runs under plain python, and with `prepare` on two workers. Those whose framework is missing are left out:

    KERAS_BACKEND=torch python benchmarks/strangers.py [--megabytes 1000] [--ways arrays ...]
"""

import importlib.util
import os
import tempfile
import time
from pathlib import Path

import harness
import numpy as np

BATCH, EPOCHS, WIDTH = 256, 3, 784
FEW = 10  # Other ways read a tenth of the data.


def arrays(rows: int) -> tuple:
    """Return images and labels, every page of which is in memory."""
    x = np.empty((rows, WIDTH), "float32")
    x[:] = np.arange(WIDTH) / WIDTH
    return x, np.arange(rows, dtype="int32") % 10


# The scripts: each returns the class of its model, and what it passes to `fit`.


def keras_arrays(keras, rows):
    return keras.Sequential, arrays(rows)


def shared_arrays(keras, rows):
    from platoon_base.data import SharedData

    kept = [SharedData(lambda i=i: arrays(rows)[i], str(i)) for i in range(2)]
    return keras.Sequential, [data.array for data in kept]


def mapped_arrays(keras, rows):
    path = Path(tempfile.mkdtemp()) / "x.npy"
    x, y = arrays(rows)
    np.save(path, x)
    return keras.Sequential, (np.load(path, mmap_mode="r"), y)


def tf_data(keras, rows):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(arrays(rows // FEW))
    return keras.Sequential, (data.shuffle(1000, seed=1).batch(BATCH),)


def data_loader(keras, rows):
    import torch

    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, arrays(rows // FEW)))
    return keras.Sequential, (torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=2),)


def generator(keras, rows):
    x, y = arrays(rows // FEW)

    def batches():
        order = np.random.default_rng(0)
        while True:
            chosen = order.integers(0, len(x), BATCH)
            yield x[chosen], y[chosen]

    return keras.Sequential, (batches(),)


def py_dataset(keras, rows):
    x, y = arrays(rows // FEW)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(x) // BATCH

        def __getitem__(self, i):
            return x[i * BATCH : (i + 1) * BATCH], y[i * BATCH : (i + 1) * BATCH]

    return keras.Sequential, (Batches(),)


def train_step(keras, rows):
    class Own(keras.Sequential):
        def train_step(self, *data):  # JAX passes the state too.
            return super().train_step(*data)

    return Own, arrays(rows // FEW)


NEEDED = {"tf_data": "tensorflow", "data_loader": "torch"}
WAYS = (keras_arrays, shared_arrays, mapped_arrays, tf_data, data_loader, generator, py_dataset, train_step)


def memory_mb() -> dict:
    """Return the memory of this process: resident, and divided by its users where it is shared."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {"rss": sizes["Rss"], "pss": sizes["Pss"]}


def work(given) -> None:
    from platoon_plugins.keras import prepare, rank, world_size
    import keras  # isort: skip - the adapter comes first

    class Course(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.since, self.first, self.rates, self.memory = time.perf_counter(), [], [], []

        def on_epoch_begin(self, epoch, logs=None):
            self.begun = 0.0

        def on_train_batch_end(self, batch, logs=None):
            now = time.perf_counter()
            if not self.begun:
                self.begun = now
                self.first.append(now - self.since)
            self.last, self.steps = now, batch

        def on_epoch_end(self, epoch, logs=None):
            self.rates.append(self.steps / (self.last - self.begun))
            self.memory.append(memory_mb())
            self.since = time.perf_counter()

    way, rows = given.way, given.rows
    kind, data = next(each for each in WAYS if each.__name__ == way)(keras, rows)
    model = kind([keras.Input((WIDTH,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    if world_size() > 1:
        prepare(model)
    options = {"batch_size": BATCH} if len(data) > 1 else {}
    if way == "generator":
        options["steps_per_epoch"] = rows // FEW // BATCH
    course = Course()
    model.fit(*data, epochs=EPOCHS, verbose=0, callbacks=[course], **options)
    measured = {"first_s": course.first, "steps_per_s": max(course.rates)}
    measured |= {name: max(each[name] for each in course.memory) for name in ("rss", "pss")}
    harness.give(rank(), measured)


def compared(way: str, rows: int) -> dict:
    values = {"way": way, "rows": rows}
    (plain,) = harness.job(__file__, values, devices=["cpu"], launched=False)
    workers = harness.job(__file__, values)
    ratios = {f"{name} / plain": max(each[name] for each in workers) / plain[name] for name in ("rss", "pss")}
    firsts = {name: " ".join(f"{s:.3f}" for s in of["first_s"]) for name, of in (("plain", plain), ("two", workers[0]))}
    speed = sum(each["steps_per_s"] for each in workers) / plain["steps_per_s"]
    row = {"script": way, "plain, MB": plain["rss"], **ratios, "first steps, s": firsts["plain"]}
    return {**row, "on 2 workers, s": firsts["two"], "steps/s / plain": speed}


def measure() -> None:
    options = harness.options(__doc__, megabytes=1000, ways=[each.__name__ for each in WAYS])
    ways = [way for way in options.ways if importlib.util.find_spec(NEEDED.get(way, "keras"))]
    rows = [compared(way, options.megabytes * 10**6 // (4 * WIDTH)) for way in ways]
    backend = os.environ["KERAS_BACKEND"]
    harness.table(f"Keras on {backend}, arrays of {options.megabytes} MB", rows)
    harness.save(f"strangers-{backend}", {"results": rows}, options)


if __name__ == "__main__":
    harness.main(measure, work)
