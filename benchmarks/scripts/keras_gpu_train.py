"""What a worker of keras_gpu.py does: ``keras_gpu_train.py FOLDER --rounds 7 --batches 80 --ways alone DDP``."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import keras
import numpy as np
import torch
import torch.distributed

from platoon_base import connect
from platoon_plugins.keras import DistributedOptimizer, backends, distribute
from platoon_plugins.keras.backends import torch_gradients

WARM = 4  # one batch in so many, at the start of a fit, is not counted
BATCH, WIDTH = 128, 1024
# Numbers of layers of WIDTH x WIDTH float32: 10 and 100 MB.
MODELS = {"10 MB": (1024, 2), "100 MB": (2048, 6)}
OURS = ("averaged gradients", "in buckets of 25 MB", "by way of the host")


class Wrapped(keras.Model):
    """A model whose forward pass goes through DistributedDataParallel; else the train_step of Keras on torch."""

    def train_step(self, data):
        """Make one step."""
        x, y = data
        y_pred = self.wrapped[0](x, training=True)
        self.zero_grad()
        loss = self._compute_loss(x=x, y=y, y_pred=y_pred, training=True)
        self._loss_tracker.update_state(loss, sample_weight=x.shape[0])
        loss.backward()
        weights = self.trainable_weights[:]
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return self.compute_metrics(x, y, y_pred)


class Steps(keras.callbacks.Callback):
    """Take the time at which each batch begins."""

    def on_train_begin(self, logs=None):
        self.begun = []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(time.perf_counter())

    def milliseconds(self):
        """Return the median step."""
        return 1e3 * statistics.median(np.diff(self.begun[len(self.begun) // WARM :]))


def make(way: str, width: int, layers: int) -> keras.Model:
    """Make a model that is trained in one of the ways."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((width,))
    outputs = inputs
    for _ in range(layers):
        outputs = keras.layers.Dense(width, activation="relu")(outputs)
    model = (Wrapped if way == "DDP" else keras.Model)(inputs, keras.layers.Dense(10)(outputs))
    optimizer = keras.optimizers.SGD(0.001)
    if way in OURS:
        optimizer = DistributedOptimizer(optimizer)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if way == "DDP":
        device = torch.cuda.current_device()
        model.wrapped = (torch.nn.parallel.DistributedDataParallel(model, device_ids=[device]),)
    return model


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
    for name, (width, layers) in MODELS.items():
        rng = np.random.default_rng(rank)
        x = rng.standard_normal((batches * BATCH, width), "float32")
        y = rng.integers(0, 10, batches * BATCH)
        models = {way: make(way, width, layers) for way in ways}
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
                models[way].fit(
                    x, y, BATCH, 1, verbose=0, shuffle=False, callbacks=distribute([steps]) if ours else [steps]
                )
                torch.cuda.synchronize()
                took[way] = steps.milliseconds()
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
    main(parser.parse_args())
