"""What a worker of keras_gpu.py does: ``keras_gpu_train.py FOLDER --rounds 7 --batches 80 --ways alone DDP``."""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import pstats
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import torch
import torch.distributed
from keras_ddp import in_ddp

from platoon_base import connect
from platoon_plugins.keras import DistributedOptimizer, backends, distribute
from platoon_plugins.keras.backends import torch_gradients

WARM = 4  # one batch in so many, at the start of a fit, is not counted
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "zoo"))
import keras_models  # noqa: E402


class Task(NamedTuple):
    """A model, its mini-batches, and what part of the --batches of a round are made."""

    rows: int
    shape: tuple[int, ...]
    classes: int
    part: float
    size: tuple[int, int] | None = None  # width and number of dense layers


MODELS = {
    "10 MB": Task(128, (1024,), 10, 1, (1024, 2)),
    "100 MB": Task(128, (2048,), 10, 1, (2048, 6)),
    "ResNet-50": Task(32, (224, 224, 3), 1000, 0.25),
}
OURS = ("averaged gradients", "in buckets of 25 MB", "by way of the host")


class Steps(keras.callbacks.Callback):
    """Take the time at which each batch begins."""

    def on_train_begin(self, logs=None):
        self.begun = []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(time.perf_counter())

    def milliseconds(self):
        """Return the median step."""
        return 1e3 * statistics.median(np.diff(self.begun[len(self.begun) // WARM :]))


def make(way: str, task: Task) -> keras.Model:
    """Make a model that is trained in one of the ways."""
    keras.utils.set_random_seed(3)
    if task.size is None:
        built = keras_models.resnet50(task.shape, task.classes)
        inputs, outputs = built.inputs, built.outputs[0]
    else:
        width, layers = task.size
        inputs = outputs = keras.Input(task.shape)
        for _ in range(layers):
            outputs = keras.layers.Dense(width, activation="relu")(outputs)
        outputs = keras.layers.Dense(task.classes)(outputs)
    model = keras.Model(inputs, outputs)
    optimizer = keras.optimizers.SGD(0.001)
    if way in OURS:
        optimizer = DistributedOptimizer(optimizer)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=task.size is not None))
    return in_ddp(model) if way == "DDP" else model


@contextlib.contextmanager
def profiled(path: Path | None) -> Iterator[None]:
    """Write what Python's functions take within the ``with`` block, if there is a path."""
    profile = cProfile.Profile()
    with profile if path else contextlib.nullcontext():
        yield
    if path:
        with path.open("w") as file:
            pstats.Stats(profile, stream=file).sort_stats("cumtime").print_stats(150)


def main(args: argparse.Namespace) -> None:
    """Measure all ways in turn, and write the steps."""
    folder, worker, ways, batches = args.folder, connect(), args.ways, args.batches
    rank = worker.global_rank
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{folder}/ddp", rank=rank, world_size=worker.global_size
    )
    backend = type(backends.current())
    average_on_device, bucket_s = backend.gradient_device, torch_gradients.BUCKET_S
    results = {}
    for name in args.models:
        rng, task = np.random.default_rng(rank), MODELS[name]
        rows = max(WARM, round(task.part * batches)) * task.rows
        x = rng.standard_normal((rows, *task.shape), "float32")
        y = rng.integers(0, task.classes, rows)
        models = {way: make(way, task) for way in ways}
        rounds = []
        for number in range(args.rounds):
            took = {}
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                backend.gradient_device = (
                    (lambda self, model: None) if way == "by way of the host" else average_on_device
                )
                torch_gradients.BUCKET_S = 0 if way == "in buckets of 25 MB" else bucket_s
                steps = Steps()
                ours = way in OURS
                worker.barrier()
                last = args.profile and number == args.rounds - 1 and rank == 0
                with profiled(args.profile / f"{name} {way}.txt".replace(" ", "-") if last else None):
                    models[way].fit(
                        x, y, task.rows, 1, verbose=0, shuffle=False, callbacks=distribute([steps]) if ours else [steps]
                    )
                torch.cuda.synchronize()
                took[way] = steps.milliseconds()
            if not args.profile or number < args.rounds - 1:
                rounds.append(took)
            print(name, number, {way: round(ms, 3) for way, ms in took.items()}, flush=True)
        results[name] = {
            "parameters": models["alone"].count_params(),
            "rounds": rounds[1:],  # the first one compiles
            "weights": {way: float(sum(w.abs().sum() for w in model.parameters())) for way, model in models.items()},
        }
    versions = {"torch": torch.__version__, "keras": keras.__version__, "gpu": torch.cuda.get_device_name()}
    (folder / f"{rank}.json").write_text(json.dumps({"models": results, "versions": versions}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=80)
    parser.add_argument("--ways", nargs="+", required=True)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--profile", type=Path)
    main(parser.parse_args())
