"""The cost of comparing the workers' batches, as a part of the step of a small Keras model.

A generator is read with and without it, interleaved, and a tf.data.Dataset where TensorFlow is the back end. The step
is one of ``train_on_batch``. Run it with a Python that has Keras 3, such as ``.nox/keras3/bin/python``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from platoon_plugins.keras import seeds
from platoon_plugins.keras.read_order import ReadOrder
from platoon_plugins.keras.torch_loaders import every_nth

BATCH, FEATURES, WORKERS = 32, 784, 2


def batches() -> Iterator[Any]:
    """Yield one batch over and over."""
    x = np.random.default_rng(0).random((BATCH, FEATURES), "float32")
    y = np.arange(BATCH) % 10
    while True:
        yield x, y


def seconds(call: Callable[[], Any], times: int) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def main() -> None:
    """Print the time of a step, and the cost of the comparison for one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    model = keras.Sequential(
        [keras.Input((FEATURES,)), *(keras.layers.Dense(512, "relu") for _ in range(2)), keras.layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = next(batches())
    worker: Any = SimpleNamespace(global_rank=0, global_size=WORKERS)
    compared = every_nth(batches(), ReadOrder("", "", WORKERS), seeds.Common([0]), worker)
    plain = batches()
    calls = {
        "step": lambda: model.train_on_batch(x, y),
        "compared": lambda: next(compared),
        "plain": lambda: [next(plain) for _ in range(WORKERS)],
    }
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        from platoon_plugins.keras.dataset_order import watched

        data = tf.data.Dataset.from_tensors((x, y)).repeat()
        read, read_watched = iter(data), iter(watched(data, WORKERS))
        calls["tf.data"] = lambda: [next(read) for _ in range(WORKERS)]
        calls["tf.data compared"] = lambda: [next(read_watched) for _ in range(WORKERS)]
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        seconds(call, 20)
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(seconds(call, 100))
    of = {name: statistics.median(values) * 1e6 for name, values in found.items()}
    for one, other in (("plain", "compared"), ("tf.data", "tf.data compared")):
        if one in of:
            extra = of[other] - of[one]
            print(f"{other}: {extra:.0f} us for a step of {of['step']:.0f} us: {extra / of['step']:.2%}")


if __name__ == "__main__":
    main()
