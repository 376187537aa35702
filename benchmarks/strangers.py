"""What ordinary scripts cost on two workers: memory, the start, the wait for an epoch's first step, steps per second.

Each runs under plain python, and with `prepare` on two workers, in turn. Those whose framework is missing are left out:

    KERAS_BACKEND=torch python benchmarks/strangers.py [--megabytes 1000] [--rounds 3] [--ways keras_arrays ...]
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


def mixed_precision(keras, rows):
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    return keras.Sequential, arrays(rows // FEW)


def channels_last(course, rows):
    """Train a convolutional net in a loop of PyTorch, which has its epochs from ``course``."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from platoon_base.torch_loops import prepare

    count = rows // FEW // 8
    x = torch.rand(count, 3, 28, 28).to(memory_format=torch.channels_last)
    loader = DataLoader(TensorDataset(x, torch.arange(count) % 10), 32, shuffle=True)
    layers = [torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10)]
    model = torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    if "PLATOON_RANK" in os.environ:
        model, optimizer, loader = prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        course.epoch_begins()
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            course.step_ends()
        course.epoch_ends()


NEEDED = {"tf_data": "tensorflow", "data_loader": "torch", "channels_last": "torch"}
WAYS = (keras_arrays, shared_arrays, mapped_arrays, tf_data, data_loader, generator, py_dataset, train_step)
WAYS += (mixed_precision, channels_last)


def memory_mb() -> dict:
    """Return the memory of this process: resident, and divided by its users where it is shared."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {"rss": sizes["Rss"], "pss": sizes["Pss"]}


class Course:
    """What is measured of a training."""

    def __init__(self):
        self.since, self.first, self.rates, self.memory = time.perf_counter(), [], [], []
        self.start, self.begun = 0.0, 0.0

    def epoch_begins(self):
        self.begun, self.steps = 0.0, 0

    def step_ends(self):
        self.last = time.perf_counter()
        if self.begun:
            self.steps += 1
            return
        self.begun = self.last
        self.first.append(self.last - self.since)
        self.start = self.start or time.time() - harness.given().launched

    def epoch_ends(self):
        self.rates.append(self.steps / (self.last - self.begun))
        self.memory.append(memory_mb())
        self.since = time.perf_counter()

    def measured(self) -> dict:
        found = {"first_s": self.first, "start": self.start, "steps": max(self.rates)}
        return found | {name: max(each[name] for each in self.memory) for name in ("rss", "pss")}


def work(given) -> None:
    course = Course()
    (way,) = (each for each in WAYS if each.__name__ == given.way)
    if way is channels_last:
        way(course, given.rows)
    else:
        fit(way, given.rows, course)
    harness.give(int(os.environ.get("PLATOON_RANK", 0)), course.measured())


def fit(way, rows, course) -> None:
    from platoon_plugins.keras import prepare, world_size
    import keras  # isort: skip - the adapter comes first

    class Steps(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            course.epoch_begins()

        def on_train_batch_end(self, batch, logs=None):
            course.step_ends()

        def on_epoch_end(self, epoch, logs=None):
            course.epoch_ends()

    kind, data = way(keras, rows)
    model = kind([keras.Input((WIDTH,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    if world_size() > 1:
        prepare(model)
    options = {"batch_size": BATCH} if len(data) > 1 else {}
    if way is generator:
        options["steps_per_epoch"] = rows // FEW // BATCH
    model.fit(*data, epochs=EPOCHS, verbose=0, callbacks=[Steps()], **options)


def compared(way: str, rows: int, rounds: int) -> dict:
    """Return the ratios of a script; memory and start of the worker that has more, steps of the slower one."""

    def run(**how):
        return harness.job(__file__, {"way": way, "rows": rows, "launched": time.time()}, **how)

    found = harness.interleaved({"plain": lambda: run(devices=["cpu"], launched=False)[0], "two": run}, rounds)
    row = {"script": way, "plain, MB": harness.median(each["rss"] for each in found["plain"])}
    columns = {"rss": ("rss", max), "pss": ("pss", max), "start": ("start", max), "steps/s": ("steps", min)}
    for title, (name, chosen) in columns.items():
        two = [chosen(each[name] for each in workers) for workers in found["two"]]
        row[f"{title} / plain"] = harness.ratio(two, [each[name] for each in found["plain"]])
    for title, of in (("first steps, s", found["plain"][-1]), ("on 2 workers, s", found["two"][-1][0])):
        row[title] = " ".join(f"{s:.3f}" for s in of["first_s"])
    harness.goal(f"{way}: steps of a worker", row["steps/s / plain"], 0.95)
    return row


def measure() -> None:
    options = harness.options(__doc__, megabytes=1000, rounds=3, ways=[each.__name__ for each in WAYS])
    ways = [way for way in options.ways if importlib.util.find_spec(NEEDED.get(way, "keras"))]
    rows = [compared(way, options.megabytes * 10**6 // (4 * WIDTH), options.rounds) for way in ways]
    backend = os.environ["KERAS_BACKEND"]
    harness.table(f"Keras on {backend}, arrays of {options.megabytes} MB, {options.rounds} rounds", rows)
    harness.save(f"strangers-{backend}", {"results": rows}, options)


if __name__ == "__main__":
    harness.main(measure, work)
