"""The tasks of benchmarks/learning.py; it needs the table where no framework is imported."""

from __future__ import annotations

import gzip
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

PACKAGE = "dataset-fashion-mnist"  # of Debian and Ubuntu
INSTALLED = "usr/share/datasets/fashion-mnist"
CACHE = Path(__file__).parents[2] / ".cache" / "data"  # where `make data` puts them
FASHION_MNIST = (
    [Path(os.environ["FASHION_MNIST"])] if "FASHION_MNIST" in os.environ else [CACHE / INSTALLED, Path("/", INSTALLED)]
)
Rows = tuple[np.ndarray, np.ndarray]


class DataMissing(Exception):
    """The data of a task are not installed; the text says how to install them."""


class Network(NamedTuple):
    """Layers in their order: convolutions of 3x3 with relu and 2x2 max pooling, dense ones with relu, dropout, softmax.

    Attributes
    ----------
    inputs : tuple of int
        Shape of a row; convolutions see the last number as the channels.
    filters, dense : tuple of int
        Filters of each convolution, units of each dense layer.
    classes : int
    dropout : float
    """

    inputs: tuple[int, ...]
    filters: tuple[int, ...] = ()
    dense: tuple[int, ...] = ()
    classes: int = 10
    dropout: float = 0.0


class Recurrent(NamedTuple):
    """An embedding, an LSTM layer, softmax over the characters at each position.

    Attributes
    ----------
    embedding, units : int
    length : int
        Characters in a sequence, each of which begins with a state of zeros.
    classes : int
        Different characters.
    """

    embedding: int
    units: int
    length: int
    classes: int


class Transformer(NamedTuple):
    """Embeddings of characters and positions, blocks of causal attention, softmax at each position.

    Attributes
    ----------
    width, blocks : int
    length : int
        Characters in a sequence.
    classes : int
        Different characters.
    """

    width: int
    blocks: int
    length: int
    classes: int


class Residual(NamedTuple):
    """A ResNet: stages of blocks of two 3x3 convolutions with BatchNormalization, softmax over the mean of all places.

    Attributes
    ----------
    inputs : tuple of int
        Shape of a row; the last number is the channels.
    filters : tuple of int
        Of each stage.
    blocks : int
        In a stage.
    classes : int
    """

    inputs: tuple[int, ...]
    filters: tuple[int, ...]
    blocks: int
    classes: int = 10


class Task(NamedTuple):
    """Real data, the network that learns them, and the targets, which were set before any method was measured.

    Attributes
    ----------
    data : callable() -> ((x, y), (x, y))
        Rows to train on and rows to validate on: float32, with labels as one-hot rows; or characters as numbers, with
        the characters that follow.
    network : Network, Recurrent, Transformer or Residual
    batch_size : int
        Rows of a mini-batch of each worker.
    epochs : int
        Passes over the rows, all workers together.
    rates : tuple of float
        Learning rates; the best one for a single process is kept for all methods.
    targets : tuple of float
        On the validation rows, the hardest last.
    value : str
        What is validated.
    lower : bool
        Whether lower values are better.
    frameworks : tuple of str
        Those that it is written for.
    validations : int
        In each pass over the rows.
    optimizer : {"adam", "sgd"}
        In Keras; "sgd" has momentum 0.9.
    """

    data: Callable[[], tuple[Rows, Rows]]
    network: Network | Recurrent | Transformer | Residual
    batch_size: int
    epochs: int
    rates: tuple[float, ...]
    targets: tuple[float, ...]
    value: str = "validation accuracy"
    lower: bool = False
    frameworks: tuple[str, ...] = ("keras", "lasagne")
    validations: int = 1
    optimizer: str = "adam"


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


def fashion_mnist(*folders: Path) -> tuple[Rows, Rows]:
    """Return Fashion-MNIST: 60,000 rows to train on, and the 10,000 test images to validate on.

    It is read from the first folder that is there, of those that FASHION_MNIST, `make data` or the package fill.
    """
    folders = folders or FASHION_MNIST
    folder = next((each for each in folders if each.is_dir()), folders[-1])
    try:
        return _images_and_labels(folder, "train"), _images_and_labels(folder, "t10k")
    except FileNotFoundError as exc:
        raise DataMissing(
            f"{exc.filename} is not here: `make data` or `apt-get install {PACKAGE}` gets it, or name the folder of "
            "the four files in the environment variable FASHION_MNIST"
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


# Modules that are plain files from Python 3.9 to 3.13, and have changed little.
TRAINING_TEXT = ("argparse", "ast", "configparser", "contextlib", "difflib", "functools", "mailbox", "shutil")
VALIDATION_TEXT = ("smtplib", "textwrap")
FIRST, LAST = 32, 126  # the characters of ASCII that are kept; a line's end is one more, and so is all the rest


def stdlib(length: int = 50) -> tuple[Rows, Rows]:
    """Return sources of Python's standard library as sequences of characters, and the character that follows each."""
    return _sequences(TRAINING_TEXT, length), _sequences(VALIDATION_TEXT, length)


def whole_stdlib(length: int = 50) -> tuple[Rows, Rows]:
    """Return all plain modules of the standard library of this Python: about 4 MB, other ones in each version."""
    names = sorted(path.stem for path in Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
    chosen = tuple(name for name in names if name not in (*VALIDATION_TEXT, "sitecustomize"))  # that one is the site's
    return _sequences(chosen, length), _sequences(VALIDATION_TEXT, length)


def _sequences(modules: tuple[str, ...], length: int) -> Rows:
    folder = Path(sysconfig.get_path("stdlib"))
    try:
        text = b"".join((folder / f"{name}.py").read_bytes() for name in modules)
    except FileNotFoundError as exc:
        raise DataMissing(
            f"{exc.filename} is not here: take a Python that has its standard library as sources"
        ) from exc
    characters = np.frombuffer(text, np.uint8).astype("int32")
    kept = (characters >= FIRST) & (characters <= LAST)
    numbers = np.where(kept, characters - FIRST, np.where(characters == ord("\n"), LAST - FIRST + 1, LAST - FIRST + 2))
    count = (len(numbers) - 1) // length
    numbers = numbers.astype("int32")
    return numbers[: count * length].reshape(count, length), numbers[1 : count * length + 1].reshape(count, length)


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
    "fashion-mnist-gpu": Task(
        fashion_mnist,
        Network((28, 28, 1), filters=(32, 64), dense=(128,), dropout=0.3),
        128,
        18,
        (0.0005, 0.001, 0.002),
        (0.90, 0.905, 0.91),
    ),
    "stdlib-lstm": Task(
        stdlib,
        Recurrent(embedding=32, units=64, length=50, classes=97),
        32,
        6,
        (0.005, 0.01, 0.02, 0.04),
        (2.9, 2.8, 2.75),
        value="validation, bits per character",
        lower=True,
        frameworks=("lasagne",),
    ),
}
TASKS["stdlib-lstm-long"] = TASKS["stdlib-lstm"]._replace(
    data=whole_stdlib, epochs=2, targets=(2.6, 2.5, 2.4), validations=8
)
TASKS["fashion-mnist-sgd"] = TASKS["fashion-mnist"]._replace(
    rates=(0.02, 0.05, 0.1, 0.2), frameworks=("keras",), optimizer="sgd"
)
TASKS["fashion-mnist-resnet"] = Task(
    fashion_mnist,
    Residual((28, 28, 1), (16, 32, 64), 3),
    128,
    12,
    (0.001, 0.002, 0.004),
    (0.90, 0.91, 0.92),
    frameworks=("keras",),
)
TASKS["stdlib-transformer"] = TASKS["stdlib-lstm-long"]._replace(
    network=Transformer(width=64, blocks=2, length=50, classes=97),
    rates=(0.001, 0.002, 0.004, 0.008),
    targets=(2.6, 2.4, 2.3),
    frameworks=("keras",),
)
