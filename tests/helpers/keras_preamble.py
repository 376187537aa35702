"""What the scripts of the Keras tests begin with: small models, the same on both generations of Keras."""

# ruff: noqa: F401, I001 - for the scripts that follow; platoon_plugins.keras comes before keras
import gc
import json
import os
import signal
import sys
import time
import warnings
import numpy as np
from platoon_plugins.keras import ASGD, EASGD, DistributedOptimizer, LocalSGD
from platoon_plugins.keras import backends, broadcast_variables, distribute, evaluate, predict, prepare, shard
import keras
from platoon_base import connect
from platoon_base.errors import PlatoonError
from refusing import raises, refused

KERAS_2 = keras.__version__.startswith("2.")
L = keras.layers
worker = connect()
rank, size = worker.global_rank, worker.global_size


def dense(units=(8, 3), optimizer="sgd", extra=(), metrics=("accuracy",), **options):
    np.random.seed(5)
    if not KERAS_2:
        keras.utils.set_random_seed(5)
    layers = (
        [L.Dense(units[0], activation="tanh", name="hidden", input_shape=(6,))]
        if KERAS_2
        else [keras.Input((6,)), L.Dense(units[0], activation="tanh", name="hidden")]
    )
    model = keras.Sequential([*layers, *extra, L.Dense(units[1], activation="softmax", name="out")])
    model.compile(optimizer, loss=options.pop("loss", "categorical_crossentropy"), metrics=list(metrics), **options)
    return model


class OwnStep:
    """A train_step written by hand, for a model of Keras 3 that has ``loss_of(x, y)``; JAX takes that of Keras."""

    if keras.backend.backend() == "torch":

        def train_step(self, data):
            self.zero_grad()
            loss = self.loss_of(*data[:2])
            loss.backward()
            weights = list(self.trainable_weights)
            with __import__("torch").no_grad():
                self.optimizer.apply([weight.value.grad for weight in weights], weights)
            self._loss_tracker.update_state(loss)
            return {"loss": self._loss_tracker.result()}

    elif keras.backend.backend() == "tensorflow":

        def train_step(self, data):
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = self.loss_of(*data[:2])
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            self._loss_tracker.update_state(loss)
            return {"loss": self._loss_tracker.result()}


def data(rows, seed=0):
    rng = np.random.RandomState(seed)
    x = rng.randn(rows, 6).astype("float32")
    labels = (x @ np.random.RandomState(9).randn(6, 3)).argmax(1)
    return x, np.eye(3, dtype="float32")[labels]


def flat(weights):
    return np.concatenate([np.asarray(w, "float64").ravel() for w in weights])


def everyones(values):
    return worker.all_gather(np.ascontiguousarray(values, "float64"))


def same_everywhere(model):
    """Require that a model has the same weights on all workers, and return them."""
    weights = flat(model.get_weights())
    assert (everyones(weights) == weights).all(), everyones(weights)
    return weights


def fit(model, *rows, callbacks=None, valid=(), batch_size=8, verbose=0, **options):
    """Fit a model on this worker's part of the rows; what `distribute` takes goes there."""
    names = {"rule", "every_n_batches", "policy", "leader_only"} & set(options)
    callbacks = distribute(callbacks, **{name: options.pop(name) for name in names})
    if valid:
        options["validation_data"] = shard(*valid)
    return model.fit(*shard(*rows), batch_size=batch_size, verbose=verbose, callbacks=callbacks, **options)


def require_one_process(build, x, y, tolerance=1e-5, moved=0.02, elsewhere=False, **options):
    """Require that averaged gradients train as one process with larger batches does, and return their model.

    `build` gets what wraps its optimizer; with `elsewhere` the other workers begin with weights that do not count.
    """
    one, model = build(lambda optimizer: optimizer), build(DistributedOptimizer)
    start, options = flat(one.get_weights()), {"shuffle": False, "verbose": 0, **options}
    if rank and elsewhere:
        model.set_weights([weight + 1 for weight in model.get_weights()])
    expected = one.fit(x, y, batch_size=8 * size, **options).history
    found = fit(model, x, y, **options).history
    differ = abs(flat(one.get_weights()) - same_everywhere(model)).max()
    assert abs(flat(one.get_weights()) - start).max() > moved, options
    assert differ < tolerance, (options, differ)
    if len(x) % (8 * size) == 0:  # Smaller batches may count as much as others in a user's own step.
        assert abs(expected["loss"][0] - found["loss"][0]) < max(tolerance, 1e-4), (options, expected, found)
    return model


class Watch(keras.callbacks.Callback):
    def __init__(self, batch_end=None, epoch_end=None, epoch_begin=None):
        super().__init__()
        self.epochs, self.logs, self.batches = [], [], 0
        self.do_batch, self.do_epoch, self.do_begin = batch_end, epoch_end, epoch_begin

    def on_epoch_begin(self, epoch, logs=None):
        if self.do_begin:
            self.do_begin(self, epoch)

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.do_batch:
            self.do_batch(self, batch)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(epoch)
        self.logs.append({name: float(value) for name, value in logs.items()})
        if self.do_epoch:
            self.do_epoch(self, epoch, logs)


def stop(callback):
    callback.model.stop_training = True


if os.environ.get("PLATOON_TEST_TENSORS"):
    device = __import__("torch").device("cpu") if keras.backend.backend() == "torch" else 0
    type(backends.current()).gradient_device = lambda backend, model: device
    if keras.backend.backend() == "torch":
        from platoon_base.collectives.tensors import HostTensors

        HostTensors.stays_on_device = True
    if os.environ.get("PROCESSOR_NCCL"):
        from processor_cuda import use_processor

        use_processor(os.environ["PROCESSOR_NCCL"])
    if os.environ.get("PLATOON_TEST_NO_NVRTC") == str(worker.global_rank):
        from platoon_base.devices import runtime
        from platoon_base.errors import BackendUnavailableError

        def refuse(*args, **options):
            raise BackendUnavailableError("no compiler")

        runtime.CudaRuntime = refuse

if keras.backend.backend() == "torch" and os.environ.get("PLATOON_TEST_BUCKET_BYTES"):
    from platoon_plugins.keras.backends import torch_gradients

    torch_gradients.BUCKET_BYTES, torch_gradients.BUCKET_S = int(os.environ["PLATOON_TEST_BUCKET_BYTES"]), 0
