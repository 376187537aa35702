"""What ordinary scripts cost on two workers: memory, the wait for the first step of an epoch, steps per second.

Each runs under plain python, and with `prepare` on two workers. Those whose framework is missing are left out:

    KERAS_BACKEND=torch python benchmarks/strangers.py [--megabytes 1000] [--ways arrays ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import report

WORKERS, BATCH, EPOCHS, WIDTH = 2, 256, 3, 784
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


WAYS = (keras_arrays, shared_arrays, mapped_arrays, tf_data, data_loader, generator, py_dataset, train_step)


def memory_mb() -> dict:
    """Return the memory of this process: resident, and divided by its users where it is shared."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {"rss": sizes["Rss"], "pss": sizes["Pss"]}


def train(way: str, rows: int, folder: str) -> None:
    """Run one script, and write what this worker has measured."""
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
    Path(folder, f"{rank()}.json").write_text(json.dumps(measured))


def run(way: str, rows: int, workers: int) -> list[dict] | None:
    """Return what each worker has measured; None if a package is missing."""
    with tempfile.TemporaryDirectory() as folder:
        launch = ["-m", "platoon_base", "launch", "-n", str(workers), "--log-dir", f"{folder}/logs"]
        script = [__file__, "--train", way, "--rows", str(rows), "--folder", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *(launch if workers > 1 else []), *script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if "ModuleNotFoundError" in done.stderr + done.stdout:
            return None
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}\n{way} FAILED")
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]


def compared(way: str, rows: int) -> list | None:
    plain, workers = run(way, rows, 1), run(way, rows, WORKERS)
    if not plain or not workers:
        return None
    ratios = [max(each[name] for each in workers) / plain[0][name] for name in ("rss", "pss")]
    firsts = [f"{each:.3f}" for each in [*plain[0]["first_s"], *workers[0]["first_s"]]]
    speed = sum(each["steps_per_s"] for each in workers) / plain[0]["steps_per_s"]
    return [way, plain[0]["rss"], *ratios, " ".join(firsts[:EPOCHS]), " ".join(firsts[EPOCHS:]), speed]


HEADINGS = ["script", "plain, MB", "RSS / plain", "PSS / plain", "first steps, s", "2 workers, s", "speed / plain"]


def main() -> None:
    names = [each.__name__ for each in WAYS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the arrays  [1000]")
    parser.add_argument("--ways", nargs="+", choices=names, default=names, help="what to measure  [all]")
    parser.add_argument("--out", type=Path, help="folder for the results  [none]")
    for name in ("--train", "--rows", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train, int(args.rows), args.folder)
        return
    rows = [compared(way, args.megabytes * 10**6 // (4 * WIDTH)) for way in args.ways]
    found = [row for row in rows if row]
    report.table(f"Keras on {os.environ['KERAS_BACKEND']}, arrays of {args.megabytes} MB", HEADINGS, found)
    if args.out:
        report.save(f"strangers-{os.environ['KERAS_BACKEND']}", {"columns": HEADINGS, "results": found}, args.out)


if __name__ == "__main__":
    main()
