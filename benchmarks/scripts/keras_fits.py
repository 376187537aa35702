"""What the workers of benchmarks/keras_fit.py do: a function for each of its measurements."""

# ruff: noqa: I001 - platoon_plugins.keras comes before keras

import contextlib
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from unittest import mock

import harness

given = harness.given()
if given.__dict__.get("role") != "plain":  # that one knows nothing of this project
    from platoon_plugins.keras import EASGD, DistributedOptimizer, backends, distribute
    from platoon_base import connect
import keras  # noqa: E402
import numpy as np  # noqa: E402

BACKEND = keras.backend.backend()
EVERY, NEVER = 10, 10**9
SOFTMAX = {"small": (64, 64, 10), "10 MB": (1024, 1024, 1024, 512, 10), "100 MB": (1024, 4096, 4096, 1024, 10)}
LOGITS = {"10 MB": (1024, 2), "100 MB": (2048, 6)}  # units of a layer, and how many
SKIPPED = 40  # batches at the start of a fit on GPUs that are not counted; JAX lets 32 wait before it paces the loop


def wait_for_device():
    if BACKEND == "torch":
        import torch

        torch.cuda.is_available() and torch.cuda.synchronize()
    elif BACKEND == "jax":
        import jax

        for device in jax.local_devices():
            (jax.device_put(0.0, device) + 1).block_until_ready()  # behind all else in the stream


class Begins(keras.callbacks.Callback):
    """Keeps time and CPU time at the start of each batch; a hook at their ends would change Keras's ways.

    At those that ``waits`` names the device has done all before.
    """

    def __init__(self, waits=lambda epoch, batch: False):
        super().__init__()
        self.epochs, self.waits = [], waits

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_begin(self, batch, logs=None):
        if self.waits(len(self.epochs) - 1, batch):
            wait_for_device()
        self.epochs[-1].append((time.perf_counter(), time.process_time()))


def build(units, optimizer, averaged=False, metrics=None, layers=None):
    """Return a compiled model of dense layers with softmax, of units[0] inputs, or of other layers before the last."""
    layers = layers or [keras.layers.Dense(n, activation="relu") for n in units[1:-1]]
    last = keras.layers.Dense(units[-1], activation="softmax")
    shape = units[0] if isinstance(units[0], tuple) else (units[0],)
    model = keras.Sequential([keras.layers.InputLayer(shape), *layers, last])
    optimizer = DistributedOptimizer(optimizer) if averaged else optimizer
    model.compile(optimizer, "categorical_crossentropy", metrics=metrics)
    return model


def random_rows(rank, rows, inputs, classes):
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((rows, *(inputs if isinstance(inputs, tuple) else (inputs,))), np.float32)
    return x, np.eye(classes, dtype="float32")[rng.integers(classes, size=rows)]


def give(found, rank=0):
    harness.give(rank, {"keras": keras.__version__, "backend": BACKEND, **found})


# Fit: two workers on the CPU.
BATCH_SIZE = 32
# Batches of an epoch with our hooks, or without them, and how many of their first ones are not counted.
SETTLING = 40 if BACKEND == "jax" else 5
BLOCK = SETTLING + 20
SHORT = 5  # batches of an epoch whose end is measured
OTHER_FLOATS = 30_000_000  # more than a cache holds
# The options of distribute(), or None for the plain fit; "plain again" shows what is noise.
WAYS = {"plain": None, "plain again": None, "callbacks": NEVER, "EASGD": EVERY, "averaged gradients": 0}


def callbacks_of(way, mine):
    every = WAYS[way]
    if every is None:
        return mine
    return distribute(mine, rule=EASGD(), every_n_batches=every) if every else distribute(mine, rule=None)


class Switch:
    """Makes our first callback deaf to the batches of every other block: their steps are plain ones."""

    def __init__(self, ours):
        self.begun, self.inside = [], 0.0
        self.on_begin, self.on_end = ours.on_train_batch_begin, ours.on_train_batch_end
        ours.on_train_batch_begin = self.begin
        # Where ours has no hook of its own, Keras does not look at the ends of batches.
        if type(ours).on_train_batch_end is not keras.callbacks.Callback.on_train_batch_end:
            ours.on_train_batch_end = self.end

    def begin(self, batch, logs=None):
        self.begun.append((time.perf_counter(), time.process_time()))
        if batch // BLOCK % 2:
            self.on_begin(batch, logs)
            self.inside += time.perf_counter() - self.begun[-1][0]

    def end(self, batch, logs=None):
        if batch // BLOCK % 2:
            self.inside += harness.seconds(lambda: self.on_end(batch, logs))


class Fits:
    """A model for fits alone, one for rules, one with a distributed optimizer, and the data to fit them to."""

    def __init__(self, worker, units, batches):
        self.worker = worker
        # A model that was trained together is refused by a fit of this worker alone.
        self.models = {
            kind: build(units, keras.optimizers.SGD(1e-3), kind == "averaged", ["accuracy"])
            for kind in ("alone", "rule", "averaged")
        }
        rows = (given.skipped + batches + 1) * BATCH_SIZE
        self.x, self.y = random_rows(worker.global_rank, rows, units[0], units[-1])

    def fit(self, way, rows, epochs, callbacks):
        self.worker.barrier(way)
        kind = "alone" if WAYS[way] is None else "rule" if WAYS[way] else "averaged"
        model, how = self.models[kind], {"verbose": 0, "shuffle": False, "callbacks": callbacks}
        model.fit(self.x[rows], self.y[rows], BATCH_SIZE, epochs, **how)

    def begins(self, way, epochs, batches):
        begins = Begins()
        self.fit(way, slice(batches * BATCH_SIZE), epochs, callbacks_of(way, [begins]))
        return begins.epochs

    def step_s(self, way, batches):
        """Return time and CPU time of a batch in one epoch, but for its first ones: medians over tens of batches."""
        (begins,) = self.begins(way, 1, given.skipped + batches + 1)
        tens = np.diff(np.array(begins[given.skipped :: EVERY]), axis=0)  # each with one synchronization
        return (np.median(tens, 0) / EVERY).tolist()

    def in_blocks_s(self, way):
        """Return times and CPU times of a batch, in blocks of one epoch: with our hooks, and in its neighbours."""
        pairs = given.blocks // (BLOCK // 25)  # longer ones need not be as many
        callbacks = callbacks_of(way, [])
        switch, batches = Switch(callbacks[0]), (2 * pairs + 1) * BLOCK + 1
        self.fit(way, np.arange(batches * BATCH_SIZE) % len(self.x), 1, callbacks)
        begun = np.array(switch.begun)
        ends = np.arange(BLOCK, len(begun), BLOCK)
        blocks = (begun[ends] - begun[ends - BLOCK + SETTLING]) / (BLOCK - SETTLING)
        ours = range(1, len(blocks) - 1, 2)
        pairs = [(blocks[i].tolist(), ((blocks[i - 1] + blocks[i + 1]) / 2).tolist()) for i in ours]
        return {"pairs": pairs, "in_hooks": switch.inside / (len(ours) * BLOCK)}

    def between_epochs_s(self, way, epochs=5):
        begun = self.begins(way, epochs, SHORT)
        gaps = np.array([after[0] for after in begun[1:]]) - [before[-1] for before in begun[:-1]]
        return np.median(gaps, 0).tolist()


def in_pairs(call):
    """Call with a way and with "plain" one behind the other, each being the first in turn."""
    pairs = {way: [] for way in WAYS if way != "plain"}
    for number in range(given.rounds):
        for way, found in pairs.items():
            took = {each: call(each) for each in ((way, "plain") if number % 2 else ("plain", way))}
            found.append((took[way], took["plain"]))
    return pairs


def all_reduce_s(worker, weights, cold, repeats=31):
    from platoon_base.worker import FlatAllReduce

    arrays, other = [np.ones_like(weight) for weight in weights], np.ones(OTHER_FLOATS if cold else 1, np.float32)
    flat, reduce, took = np.ones(sum(w.size for w in weights), np.float32), FlatAllReduce(worker), []
    for _ in range(repeats):
        for array in (other, *arrays) if cold else ():
            array += 1
        other += 1
        worker.barrier("all-reduce")
        call = (lambda: reduce(arrays, "mean")) if cold else (lambda: worker.all_reduce(flat, "mean", dest=flat))
        took.append(harness.seconds(call))
    return float(np.median(took))


def fit():
    worker, models = connect(), {}
    for name in ("small", "10 MB"):
        batches = given.batches * (given.small_times if name == "small" else 1)
        fits = Fits(worker, SOFTMAX[name], batches)
        for way in WAYS:
            fits.begins(way, 2, SHORT)  # compiles
        weights = fits.models["rule"].get_weights()
        models[name] = {
            "parameters": int(sum(w.size for w in weights)),
            "step_s": in_pairs(partial(fits.step_s, batches=batches)),
            "between_epochs_s": in_pairs(fits.between_epochs_s),
            "blocks_s": {way: fits.in_blocks_s(way) for way in ("callbacks", "EASGD")},
            "all_reduce_s": all_reduce_s(worker, weights, cold=False),
            "cold_all_reduce_s": all_reduce_s(worker, weights, cold=True),
        }
    give({"models": models}, worker.global_rank)


# Large: memory and ends of epochs.
class Memory(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0

    def now(self):
        _, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def run(self):
        while True:
            self.peak = max(self.peak, self.now())
            time.sleep(0.005)


class Course(keras.callbacks.Callback):
    """Keeps when the batches of each epoch began and ended, and the largest memory of steps and of epochs' ends."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.last, self.took, self.peaks = memory, None, {"step": [], "end": []}, {"step": 0, "end": 0}

    def take(self, what):
        now = time.perf_counter()
        if self.last is not None:
            self.took[what].append(now - self.last)
        self.last = now
        self.peaks[what] = max(self.peaks[what], self.memory.peak)
        self.memory.peak = self.memory.now()

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self.take("end")
        self.last = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.take("step")

    def on_train_end(self, logs=None):
        self.take("end")


def large(batches=4, epochs=3, rows=2):
    """Two layers; "plain" are two separate fits at the same time."""
    worker, way = connect(), given.way
    width = round((given.megabytes * 2**20 / 4 / 2) ** 0.5)
    layers = [keras.layers.Dense(width, use_bias=False) for _ in range(2)]
    model = keras.Sequential([keras.Input((width,)), *layers])
    optimizer = keras.optimizers.SGD(1e-6)
    model.compile(DistributedOptimizer(optimizer) if way == "averaged gradients" else optimizer, "mse")
    data = np.random.RandomState(worker.global_rank).rand(rows * batches, width).astype("float32")
    memory = Memory()
    before = memory.now()
    memory.start()
    course = Course(memory)
    how = {
        "epoch ends": {"rule": EASGD(), "every_n_batches": NEVER},
        "EASGD": {"rule": EASGD(), "every_n_batches": 2},
        "defaults": {"every_n_batches": 2},
        "averaged gradients": {"rule": None},
    }
    callbacks = [course] if way == "plain" else distribute([course], **how[way])
    model.fit(data, data, batch_size=rows, epochs=epochs, verbose=0, callbacks=callbacks)
    found = {"megabytes": 4 * model.count_params() / 2**20, "before_mb": before / 2**20}
    for what, peak in course.peaks.items():
        found |= {f"{what}_mb": peak / 2**20, f"{what}_s": course.took[what]}
    give(found, worker.global_rank)


# Alone: the only worker of a job, or plain python.
class AloneFits:
    def __init__(self, ways, shape, layers):
        rows, last = (given.skipped + given.batches + 6) * 128, 5 * 128
        x, y = random_rows(1, rows, shape, 10)
        self.train, self.valid = (x[last:], y[last:]), (x[:last], y[:last])
        # A model that was trained together is refused by a fit of this worker alone.
        self.models = {
            way: build((shape, 10), keras.optimizers.Adam(), way == "averaged gradients", ["accuracy"], layers())
            for way in ways
        }

    def times(self, way):
        counted = (given.skipped, given.skipped + given.batches)
        begins = Begins(lambda epoch, batch: batch == 0 if epoch else batch in counted)
        callbacks = [begins] if way == "plain" else distribute([begins])
        self.models[way].fit(*self.train, 128, 2, verbose=0, callbacks=callbacks, validation_data=self.valid)
        first, last = (np.array(begins.epochs[0][batch]) for batch in counted)
        after = np.array(begins.epochs[1][0])
        return {"step_s": ((last - first) / given.batches).tolist(), "end_s": (after - last).tolist()}


def convolutional():
    layers = []
    for filters in (32, 64):
        layers += [keras.layers.Conv2D(filters, 3, activation="relu"), keras.layers.MaxPooling2D(2)]
    return [*layers, keras.layers.Flatten(), keras.layers.Dropout(0.5)]


def dense():
    return [keras.layers.Dense(units, activation="relu") for units in (1024, 1024, 512)]


def alone():
    ways, taken, number = ["plain"] if given.role == "plain" else ["callbacks", "averaged gradients"], {}, 0
    fits = {"10 MB": AloneFits(ways, (1024,), dense), "convolutional": AloneFits(ways, (28, 28, 1), convolutional)}
    for each in range(given.rounds + 1):  # round 0 compiles
        for name, fit_of in fits.items():
            with harness.turn(number):
                for way in ways if each % 2 else ways[::-1]:
                    took = fit_of.times(way)
                    if each:
                        taken.setdefault(name, {}).setdefault(way, []).append(took)
            number += 1
    give({"times": taken})


# GPUs: averaged gradients beside DistributedDataParallel and DataParallel.
OURS = ("averaged gradients", "in buckets of 25 MB", "by way of the host")


def averaging(way):
    """Return a context in which gradients are averaged in the way named."""
    if way == "by way of the host":
        return mock.patch.object(type(backends.current()), "gradient_device", return_value=None)
    if way == "in buckets of 25 MB":
        return mock.patch("platoon_plugins.keras.backends.torch_gradients.BUCKET_S", 0)
    return contextlib.nullcontext()


def network(name, averaged):
    """Return a compiled model, and the shape of a row, the rows of a batch, the classes, and the part of batches."""
    keras.utils.set_random_seed(3)
    if name == "ResNet-50":
        sys.path.insert(0, str(harness.ROOT / "examples" / "zoo"))
        import keras_models

        built = keras_models.resnet50((224, 224, 3), 1000)
        model, about = keras.Model(built.inputs, built.outputs[0]), ((224, 224, 3), 32, 1000, 0.25)
    else:
        units, layers = LOGITS[name]
        inputs = outputs = keras.Input((units,))
        for _ in range(layers):
            outputs = keras.layers.Dense(units, activation="relu")(outputs)
        model, about = keras.Model(inputs, keras.layers.Dense(10)(outputs)), ((units,), 128, 10, 1)
    optimizer = keras.optimizers.SGD(0.001)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=name != "ResNet-50")
    model.compile(DistributedOptimizer(optimizer) if averaged else optimizer, loss)
    return model, about


def ddp():
    import torch
    import torch.distributed
    from zoo_ddp import in_ddp

    worker, ways, warm, results = connect(), given.ways, 4, {}
    rank, size = worker.global_rank, worker.global_size
    store = f"file://{given.folder}/ddp"
    torch.distributed.init_process_group("nccl", init_method=store, rank=rank, world_size=size)
    for name in given.models:
        models = {}
        for way in ways:
            model, (shape, batch, classes, part) = network(name, way in OURS)
            models[way] = in_ddp(model) if way == "DDP" else model
        x, y = random_rows(rank, max(warm, round(part * given.batches)) * batch, shape, classes)
        y, rounds = y.argmax(1), []
        for number in range(given.rounds):
            took = {}
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                begins = Begins()
                callbacks = distribute([begins]) if way in OURS else [begins]
                worker.barrier()
                with averaging(way):
                    models[way].fit(x, y, batch, 1, verbose=0, shuffle=False, callbacks=callbacks)
                torch.cuda.synchronize()
                (begun,) = begins.epochs
                took[way] = 1e3 * float(np.median(np.diff(np.array(begun)[len(begun) // warm :, 0])))
            rounds.append(took)
            print(name, number, {way: round(ms, 3) for way, ms in took.items()}, flush=True)
        weights = {way: float(sum(w.abs().sum() for w in model.parameters())) for way, model in models.items()}
        results[name] = {"rounds": rounds[1:], "weights": weights}  # the first one compiles
    give({"models": results, "gpu": torch.cuda.get_device_name()}, rank)
    torch.distributed.destroy_process_group()


def mean_step_s(begins):
    first, last = begins.epochs[0][SKIPPED], begins.epochs[0][SKIPPED + given.batches]
    return (last[0] - first[0]) / given.batches


def counted_ends(epoch, batch):
    return batch in (SKIPPED, SKIPPED + given.batches)


def parallel():
    import jax

    ways, worker = (("alone", "averaged gradients", "by way of the host"), connect())
    if given.role == "parallel":
        ways, worker = ("DataParallel",), None
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
    rank, rows = worker.global_rank if worker else 0, 128 * len(jax.local_devices())
    fits, taken = {}, {}
    for name, (units, _) in LOGITS.items():
        x, y = random_rows(rank, (SKIPPED + given.batches + 1) * rows, units, 10)
        fits[name] = x, y.argmax(1), {way: network(name, way in OURS)[0] for way in ways}
    for number in range(given.rounds + 1):  # round 0 compiles
        with harness.turn(number, rank):
            for name, (x, y, models) in fits.items():
                for way in ways if number % 2 else ways[::-1]:
                    if worker:
                        worker.barrier(f"{name}, {way}")
                    begins = Begins(counted_ends)
                    callbacks = distribute([begins]) if way in OURS else [begins]
                    with averaging(way):
                        models[way].fit(x, y, rows, 1, verbose=0, shuffle=False, callbacks=callbacks)
                    if number:
                        taken.setdefault(name, {}).setdefault(way, []).append(mean_step_s(begins))
    give({"step_s": taken, "gpu": jax.local_devices()[0].device_kind}, rank)


# GPUs: centers.
def center():
    worker, ways, taken = connect(), {"plain": 0, "never": NEVER, "EASGD": EVERY}, {}
    fits = {}
    for name in ("10 MB", "100 MB"):
        units, rows = SOFTMAX[name], (SKIPPED + given.batches + 1) * BATCH_SIZE
        # A model that was trained together is refused by a fit of this worker alone.
        models = [build(units, keras.optimizers.SGD(1e-3)) for _ in range(2)]
        fits[name] = (*random_rows(worker.global_rank, rows, units[0], units[-1]), *models)

    def step_s(way, x, y, by_itself, together):
        begins, every = Begins(counted_ends), ways[way]
        callbacks = distribute([begins], rule=EASGD(), every_n_batches=every) if every else [begins]
        worker.barrier(way)
        model = together if every else by_itself
        model.fit(x, y, BATCH_SIZE, 1, verbose=0, shuffle=False, callbacks=callbacks)
        begun = np.array(begins.epochs[0][SKIPPED:])[:, 0]
        return [mean_step_s(begins), float(np.median(np.diff(begun[::EVERY]))) / EVERY]

    for number in range(given.rounds + 1):  # round 0 compiles
        with harness.turn(number, worker.global_rank):
            for name, data in fits.items():
                for way in list(ways) if number % 2 else list(ways)[::-1]:
                    took = step_s(way, *data)
                    if number:
                        taken.setdefault(name, {}).setdefault(way, []).append(took)
            worker.barrier(f"round {number}")
    give({"step_s": taken}, worker.global_rank)


def shared(skipped=3, counted=10):
    from platoon_base import rules

    worker, backend, took = connect(), backends.current(), []
    variables = backend.weights(keras.applications.ResNet50(weights=None))
    size_bytes = sum(variable.view().nbytes for variable in variables)
    worker.init_shared_params(variables, getattr(rules, given.rule)())

    def settle():
        wait_for_device()
        if BACKEND == "jax":
            import jax

            jax.block_until_ready([variable.variable.value for variable in variables])

    for _ in range(skipped + counted):
        for variable in variables:  # change all weights on the device
            variable.variable.assign(variable.variable.value + 0.001)
        settle()
        worker.barrier()
        took.append(harness.seconds(lambda: (worker.sync_params(), settle())))
    worker.barrier()
    found = {"megabytes": size_bytes / 1e6, "sync_s": took[skipped:], "copies_s": copies_s(size_bytes)}
    give(found, worker.global_rank)


def copies_s(size_bytes):
    if BACKEND != "torch":
        return 0.0
    import torch

    there = torch.zeros(size_bytes // 4, device="cuda")
    here = torch.empty(there.shape, pin_memory=True)

    def copy():
        here.copy_(there, non_blocking=True)
        there.copy_(here, non_blocking=True)
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    return harness.median(harness.seconds(copy) for _ in range(7))


globals()[given.measure]()
