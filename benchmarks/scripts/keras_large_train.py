"""Fit a Keras model of many megabytes for three short epochs, and write down times and memory.

    platoon launch -n 2 keras_large_train.py FOLDER MEGABYTES WAY

Started by benchmarks/keras_large.py.
"""

# ruff: noqa: I001 - platoon_plugins.keras comes before keras

import argparse
import json
import os
import threading
import time
from pathlib import Path

from platoon_plugins.keras import EASGD, DistributedOptimizer, distribute
import keras
import numpy as np

from platoon_base import connect

BATCHES, EPOCHS, ROWS = 4, 3, 2
# The options of distribute(), or None for the plain fit.
WAYS = {
    "plain": None,
    "epoch ends": {"rule": EASGD(), "every_n_batches": 10**9},
    "EASGD": {"rule": EASGD(), "every_n_batches": 2},
    "defaults": {"every_n_batches": 2},
    "averaged gradients": {"rule": None},
}
PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory(threading.Thread):
    """Looks every few milliseconds how much memory is this process's own: resident, and not shared."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0

    def now(self):
        _, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
        return (resident - shared) * PAGE

    def run(self):
        while True:
            self.peak = max(self.peak, self.now())
            time.sleep(0.005)


class Course(keras.callbacks.Callback):
    """Keeps when the batches of each epoch began and ended, and the largest memory of steps and of epochs' ends."""

    def __init__(self, memory):
        super().__init__()
        self.memory = memory
        self.steps, self.ends, self.peaks = [], [], {"step": 0, "end": 0}
        self._last = None

    def _take_peak(self, what):
        self.peaks[what] = max(self.peaks[what], self.memory.peak)
        self.memory.peak = self.memory.now()

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            if self._last is not None:
                self.ends.append(time.perf_counter() - self._last)
            self._take_peak("end")
        self._last = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.steps.append(now - self._last)
        self._last = now
        self._take_peak("step")

    def on_train_end(self, logs=None):
        self.ends.append(time.perf_counter() - self._last)
        self._take_peak("end")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("megabytes", type=int)
    parser.add_argument("way", choices=WAYS)
    args = parser.parse_args()
    worker = connect()
    width = round((args.megabytes * 2**20 / 4 / 2) ** 0.5)
    layers = [keras.layers.Dense(width, use_bias=False), keras.layers.Dense(width, use_bias=False)]
    model = keras.Sequential([keras.Input((width,)), *layers])
    optimizer = keras.optimizers.SGD(1e-6)
    if args.way == "averaged gradients":
        optimizer = DistributedOptimizer(optimizer)
    model.compile(optimizer, "mse")
    rows = np.random.RandomState(worker.global_rank).rand(ROWS * BATCHES, width).astype("float32")
    memory = Memory()
    before = memory.now()
    memory.start()
    course = Course(memory)
    options = WAYS[args.way]
    callbacks = [course] if options is None else distribute([course], **options)
    model.fit(rows, rows, batch_size=ROWS, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    result = {
        "megabytes": 4 * model.count_params() / 2**20,
        "before_mb": before / 2**20,
        "step_mb": course.peaks["step"] / 2**20,
        "end_mb": course.peaks["end"] / 2**20,
        "step_s": course.steps,
        "end_s": course.ends,
        "keras": keras.__version__,
    }
    (args.folder / f"{worker.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
