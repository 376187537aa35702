"""The tasks and the methods of learning.py: a line each in the tables TASKS and METHODS. No framework is imported."""

from __future__ import annotations

import gzip
import math
import os
import re
import sysconfig
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from platoon_base import EASGD, CenterMomentum, DiLoCo, LocalSGD, SlowMo
from platoon_base.rules import AveragedEASGD, GoSGD, default_period, default_rule, gossips, shares_moments, waits

# Tasks.
PACKAGE = "dataset-fashion-mnist"  # of Debian and Ubuntu
INSTALLED = "usr/share/datasets/fashion-mnist"
CACHE = Path(__file__).parents[1] / ".cache" / "data"  # where `make data` puts them
FASHION_MNIST = [CACHE / INSTALLED, Path("/", INSTALLED)]
if "FASHION_MNIST" in os.environ:
    FASHION_MNIST = [Path(os.environ["FASHION_MNIST"])]


class DataMissing(Exception):
    """The data of a task are not installed; the text says how to install them."""


# Convolutions of 3x3 with relu and 2x2 max pooling, dense layers with relu, dropout, softmax; channels last.
Network = namedtuple("Network", "inputs filters dense classes dropout", defaults=((), (), 10, 0.0))
# An embedding, an LSTM layer that begins each sequence with zeros, softmax at each position.
Recurrent = namedtuple("Recurrent", "embedding units length classes")
# Embeddings of characters and positions, blocks of causal attention, softmax at each position.
Transformer = namedtuple("Transformer", "width blocks length classes")
# A ResNet: stages of blocks of two 3x3 convolutions with BatchNormalization, softmax over the mean of all places.
Residual = namedtuple("Residual", "inputs filters blocks classes", defaults=(10,))


class Task(NamedTuple):
    """Real data, the network that learns them, and the targets, which were set before any method was measured."""

    data: Callable[[], tuple[Any, Any]]  # ((x, y) to train on, (x, y) to validate on)
    network: Any
    batch_size: int  # of each worker
    epochs: int  # passes over the rows, all workers together
    rates: tuple[float, ...]  # the best one for a single process is kept for all methods
    targets: tuple[float, ...]  # the hardest last
    value: str = "validation accuracy"
    lower: bool = False  # whether lower values are better
    frameworks: tuple[str, ...] = ("keras", "lasagne")
    validations: int = 1  # in each pass over the rows
    optimizer: str = "adam"  # "sgd" has momentum 0.9


def digits():
    """Return scikit-learn's handwritten digits: 1,437 rows to train on, 360 to validate on."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.RandomState(0).permutation(len(found.target))
    x, y = (found.data[order] / 16).astype("float32"), one_hot(found.target[order])
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def fashion_mnist():
    """Return Fashion-MNIST: 60,000 rows to train on, and the 10,000 test images to validate on."""
    folder = next((each for each in FASHION_MNIST if each.is_dir()), FASHION_MNIST[-1])
    found = []
    try:
        for part in ("train", "t10k"):
            images, labels = (read_idx(folder / f"{part}-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
            found.append((images.reshape(len(images), -1).astype("float32") / 255, one_hot(labels)))
    except FileNotFoundError as exc:
        raise DataMissing(
            f"{exc.filename} is not here: `make data` or `apt-get install {PACKAGE}` gets it, or name the folder of "
            "the four files in the environment variable FASHION_MNIST"
        ) from exc
    return tuple(found)


def read_idx(path):
    with gzip.open(path) as file:
        content = file.read()
    assert content[:3] == b"\0\0\x08", f"{path} is no IDX file of bytes: install {PACKAGE} again"
    shape = np.frombuffer(content, ">i4", content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def one_hot(labels):
    return np.eye(10, dtype="float32")[labels]


# Modules that are plain files from Python 3.9 to 3.13, and have changed little.
TRAINING_TEXT = ("argparse", "ast", "configparser", "contextlib", "difflib", "functools", "mailbox", "shutil")
VALIDATION_TEXT = ("smtplib", "textwrap")
FIRST, LAST = 32, 126  # the characters of ASCII that are kept; a line's end is one more, and so is all the rest


def stdlib():
    """Return sources of Python's standard library as sequences of characters, and the character that follows each."""
    return sequences(TRAINING_TEXT), sequences(VALIDATION_TEXT)


def whole_stdlib():
    """Return all plain modules of the standard library of this Python: about 4 MB, other ones in each version."""
    names = sorted(path.stem for path in Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
    chosen = [name for name in names if name not in (*VALIDATION_TEXT, "sitecustomize")]  # that one is the site's
    return sequences(chosen), sequences(VALIDATION_TEXT)


def sequences(modules, length=50):
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join((folder / f"{name}.py").read_bytes() for name in modules)
    characters = np.frombuffer(text, np.uint8).astype("int32")
    kept = (characters >= FIRST) & (characters <= LAST)
    numbers = np.where(kept, characters - FIRST, np.where(characters == ord("\n"), LAST - FIRST + 1, LAST - FIRST + 2))
    count, numbers = (len(numbers) - 1) // length, numbers.astype("int32")
    return numbers[: count * length].reshape(count, length), numbers[1 : count * length + 1].reshape(count, length)


PERCEPTRON, SMALL = Network((784,), dense=(128,)), Network((28, 28, 1), (16, 32), (64,))
LARGER = Network((28, 28, 1), (32, 64), (128,), dropout=0.3)
KERAS = {"frameworks": ("keras",)}
RATES = (0.0005, 0.001, 0.002, 0.004)
BITS = {"value": "validation, bits per character", "lower": True, "frameworks": ("lasagne",)}
LSTM = Recurrent(embedding=32, units=64, length=50, classes=97)
TASKS = {
    "digits": Task(digits, Network((64,), dense=(32,)), 32, 40, (0.002, 0.005, 0.01, 0.02), (0.93, 0.95, 0.96)),
    "fashion-mnist": Task(fashion_mnist, PERCEPTRON, 128, 30, RATES, (0.87, 0.88, 0.885)),
    "fashion-mnist-conv": Task(fashion_mnist, SMALL, 128, 12, (0.001, 0.002, 0.004, 0.008), (0.88, 0.895, 0.905)),
    "fashion-mnist-gpu": Task(fashion_mnist, LARGER, 128, 18, RATES[:3], (0.90, 0.905, 0.91)),
    "stdlib-lstm": Task(stdlib, LSTM, 32, 6, (0.005, 0.01, 0.02, 0.04), (2.9, 2.8, 2.75), **BITS),
}
LONG = TASKS["stdlib-lstm"]._replace(data=whole_stdlib, epochs=2, targets=(2.6, 2.5, 2.4), validations=8)
TASKS["stdlib-lstm-long"] = LONG
TASKS["fashion-mnist-sgd"] = TASKS["fashion-mnist"]._replace(rates=(0.02, 0.05, 0.1, 0.2), optimizer="sgd", **KERAS)
RESNET = Residual((28, 28, 1), (16, 32, 64), 3)
TASKS["fashion-mnist-resnet"] = Task(fashion_mnist, RESNET, 128, 12, RATES[1:], (0.90, 0.91, 0.92), **KERAS)
TRANSFORMER = Transformer(width=64, blocks=2, length=50, classes=97)
TASKS["stdlib-transformer"] = LONG._replace(
    network=TRANSFORMER, rates=(0.001, 0.002, 0.004, 0.008), targets=(2.6, 2.4, 2.3), **KERAS
)

# Methods.
ALONE, DEFAULTS, AVERAGED = "alone", "defaults", "averaged"
# By what the best learning rate of a single process is multiplied on N workers.
SCALINGS: dict[str, Callable[[int], float]] = {
    "unchanged": lambda workers: 1.0,
    "sqrt": math.sqrt,  # Krizhevsky, arXiv 1404.5997, section 5
    "sqrt-1.5": lambda workers: 1.5 * math.sqrt(workers),  # found by a simulation
    "linear": float,  # without warm-up: Goyal et al., arXiv 1706.02677, section 2.1
}


class Method(NamedTuple):
    """A way to train one model on N workers."""

    # ALONE calls nothing of an adapter, DEFAULTS calls it without arguments, and AVERAGED takes the mean of all
    # gradients in each step; else what makes a rule.
    rule: Callable[[], Any] | str
    every_n_batches: int = 10  # of a worker from one synchronization to the next; those of the adapters for DEFAULTS
    scaling: str = "unchanged"
    averages: bool = False  # whether Adam keeps an average of the weights (use_ema), which is validated; Keras 3 alone

    @property
    def made(self) -> Any:
        return default_rule(default_period()) if isinstance(self.rule, str) else self.rule()

    @property
    def waits(self) -> bool:
        """Whether workers wait for one another before the end of an epoch, so that a slow one slows all."""
        return self.rule == AVERAGED if self.rule in (ALONE, AVERAGED) else waits(self.made)

    @property
    def copies(self) -> int:
        """How many times the size of the model an exchange has: with moments, those of Adam and the average."""
        shares = self.rule not in (ALONE, AVERAGED) and shares_moments(self.made)
        return 3 + self.averages if shares else 1

    def scale(self, workers: int) -> float:
        return SCALINGS[self.scaling](workers)

    def exchanges(self, steps: int, ends: int) -> int:
        """Return how often a worker that makes so many steps exchanges its parameters, or its gradients.

        A rule does so every so many steps, and at an end, after which it counts anew: with Keras that of each epoch,
        with Lasagne that of the training.
        """
        if self.rule in (ALONE, AVERAGED):
            return steps if self.rule == AVERAGED else 0
        if self.rule != DEFAULTS and gossips(self.made):  # as many as are expected; a message goes one way
            return round(steps / self.every_n_batches * self.made.probability / 2)
        period = default_period() if self.rule == DEFAULTS else self.every_n_batches
        return ends * (steps // ends // period + 1)


PLAIN, PLAIN_AVERAGE = "plain", "plain-average"
# A rule, its period and, if the learning rate does not stay unchanged, its scaling. EAMSGD is for workers that train by
# SGD with momentum: with Adam it is EASGD.
RULES = {"momentum": CenterMomentum, "diloco": DiLoCo, "local-sgd": LocalSGD, "slowmo": SlowMo, "easgd": EASGD}
NAMES = "momentum-10 momentum-10-sqrt diloco-10 diloco-20 local-sgd-10 local-sgd-10-sqrt slowmo-10 easgd-10 "
NAMES += "easgd-10-sqrt easgd-10-linear easgd-4-sqrt easgd-4-linear easgd-1-linear momentum-4 momentum-4-sqrt "
NAMES += "diloco-10-sqrt local-sgd-4-sqrt slowmo-10-sqrt"
METHODS = {PLAIN: Method(ALONE), "defaults": Method(DEFAULTS)}
for each in NAMES.split():
    name, period, scaling = re.fullmatch(r"([a-z-]+)-(\d+)-?(\w*)", each).groups()
    METHODS[each] = Method(RULES[name], int(period), scaling or "unchanged")
METHODS |= {
    "easgd-2-moments": Method(lambda: EASGD(moments=True), 2, "sqrt-1.5"),
    "easgd-1-moments": Method(lambda: EASGD(moments=True), 1, "sqrt-1.5"),
    "local-sgd-10-moments": Method(lambda: LocalSGD(moments=True), 10, "sqrt-1.5"),
    PLAIN_AVERAGE: Method(ALONE, averages=True),
    "easgd-2-moments-average": Method(lambda: EASGD(moments=True), 2, "sqrt-1.5", averages=True),
    "averaged-sqrt-average": Method(AVERAGED, scaling="sqrt", averages=True),
    "averaged-easgd-035": Method(lambda: AveragedEASGD(pull=0.35), 1),
    "diloco-paper-20": Method(lambda: DiLoCo(0.7, 0.9), 20),
    "gosgd": Method(GoSGD, 1),
}
for suffix, scaling in (("", "unchanged"), ("-sqrt", "sqrt"), ("-linear", "linear")):
    METHODS[f"averaged{suffix}"] = Method(AVERAGED, scaling=scaling)
    METHODS[f"gosgd-01{suffix}"] = Method(lambda: GoSGD(probability=0.1), 1, scaling)


def give(given, worker: Any, version: str, parameters: int, points: list, ends: int) -> None:
    """Write what a run gave, on rank 0; all ranks call it. A point is (steps, seconds, value) of this worker."""
    import harness

    method, by_rank = METHODS[given.method], worker.gather(points[-1][0])
    if worker.global_rank == 0:
        found = {"version": version, "parameters": parameters, "steps_by_rank": by_rank, "curve": points}
        exchanges = sum(method.exchanges(count, ends) for count in by_rank)
        harness.give(0, {**found, "bytes_sent": exchanges * method.copies * 2 * 4 * parameters})  # there and back
