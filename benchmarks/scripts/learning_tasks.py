"""The tasks of benchmarks/learning.py; it needs the table where no framework is imported."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

PACKAGE = "dataset-fashion-mnist"  # of Debian and Ubuntu
FASHION_MNIST = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
Rows = tuple[np.ndarray, np.ndarray]


class DataMissing(Exception):
    """The data of a task are not installed; the text says how to install them."""


class Network(NamedTuple):
    """Layers in their order: convolutions of 3x3 with relu and 2x2 max pooling, dense ones with relu, softmax.

    Attributes
    ----------
    inputs : tuple of int
        Shape of a row; convolutions see the last number as the channels.
    filters, dense : tuple of int
        Filters of each convolution, units of each dense layer.
    classes : int
    """

    inputs: tuple[int, ...]
    filters: tuple[int, ...] = ()
    dense: tuple[int, ...] = ()
    classes: int = 10


class Task(NamedTuple):
    """Real data, the network that learns them, and the targets, which were set before any method was measured.

    Attributes
    ----------
    data : callable() -> ((x, y), (x, y))
        Rows to train on and rows to validate on, float32, with labels as one-hot rows.
    network : Network
    batch_size : int
        Rows of a mini-batch of each worker.
    epochs : int
        Passes over the rows, all workers together.
    rates : tuple of float
        Learning rates of Adam; the best one for a single process is kept for all methods.
    targets : tuple of float
        On the validation rows, the hardest last.
    value : str
        What is validated.
    """

    data: Callable[[], tuple[Rows, Rows]]
    network: Network
    batch_size: int
    epochs: int
    rates: tuple[float, ...]
    targets: tuple[float, ...]
    value: str = "validation accuracy"


def digits() -> tuple[Rows, Rows]:
    """Return scikit-learn's handwritten digits: 1,437 rows to train on, 360 to validate on."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as exc:
        raise DataMissing(f"{exc}: `pip install scikit-learn` installs the handwritten digits") from exc
    found = load_digits()
    order = np.random.RandomState(0).permutation(len(found.target))
    x, y = (found.data[order] / 16).astype("float32"), one_hot(found.target[order])
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def fashion_mnist(folder: Path = FASHION_MNIST) -> tuple[Rows, Rows]:
    """Return Fashion-MNIST: 60,000 rows to train on, and the 10,000 test images to validate on."""
    try:
        return _images_and_labels(folder, "train"), _images_and_labels(folder, "t10k")
    except FileNotFoundError as exc:
        raise DataMissing(
            f"{exc.filename} is not here: `apt-get install {PACKAGE}` installs it, or name the folder of the four "
            "files in the environment variable FASHION_MNIST"
        ) from exc


def _images_and_labels(folder: Path, part: str) -> Rows:
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    return images.reshape(len(images), -1).astype("float32") / 255, one_hot(labels)


def read_idx(path: Path) -> np.ndarray:
    """Return the array of bytes in a file of MNIST's format."""
    with gzip.open(path) as file:
        content = file.read()
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} begins with {content[:4]!r}: it is no IDX file of bytes; install {PACKAGE} again")
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(10, dtype="float32")[labels]


TASKS = {
    "digits": Task(digits, Network((64,), dense=(32,)), 32, 40, (0.002, 0.005, 0.01, 0.02), (0.93, 0.95, 0.96)),
    "fashion-mnist": Task(
        fashion_mnist, Network((784,), dense=(128,)), 128, 30, (0.0005, 0.001, 0.002, 0.004), (0.87, 0.88, 0.885)
    ),
    "fashion-mnist-conv": Task(
        fashion_mnist,
        Network((28, 28, 1), filters=(16, 32), dense=(64,)),
        128,
        12,
        (0.001, 0.002, 0.004, 0.008),
        (0.88, 0.895, 0.905),
    ),
}
