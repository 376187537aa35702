"""A Lasagne network learns Fashion-MNIST by a script that has no loop of its own for each worker.

`platoon launch -n 2 examples/lasagne_fashion.py` runs it on two workers, and `python examples/lasagne_fashion.py` on
one. Each call of `train` divides its mini-batch over the workers, and all get the same loss and the same parameters.

The data lie once in shared memory, and each worker excerpts its rows of a batch. With `--resident` each worker keeps
its part of the data in its own memory, that of its GPU if it has one, and selects rows there.

Fashion-MNIST comes from `make data`, from the package dataset-fashion-mnist, or from the folder that FASHION_MNIST
names. Without it the script takes scikit-learn's digits.
"""

import argparse
import gzip
import json
import os
import time
from pathlib import Path

import numpy as np

from platoon_plugins.lasagne import function, scatter  # isort: skip

import lasagne
import theano
import theano.tensor as T
from lasagne.layers import DenseLayer, DropoutLayer, InputLayer, get_all_params, get_output

from platoon_base import connect
from platoon_base.data import SharedData

BATCH_SIZE = 512  # of all workers together
LEARNING_RATE = 1e-3
INSTALLED = "usr/share/datasets/fashion-mnist"
FOLDERS = [os.environ.get("FASHION_MNIST", Path(__file__).parents[1] / ".cache" / "data" / INSTALLED), f"/{INSTALLED}"]


def read(name):
    """Return one of the four files of Fashion-MNIST as rows, or None if there is no folder with it."""
    for folder in FOLDERS if os.environ.get("FASHION_MNIST") != "" else ():
        path = Path(folder, f"{name}-ubyte.gz")
        if path.exists():
            content = gzip.decompress(path.read_bytes())
            start = 16 if "images" in name else 8  # of the first byte behind the header
            return np.frombuffer(content, np.uint8, offset=start).reshape(int.from_bytes(content[4:8], "big"), -1)
    return None


def load(part):
    """Return (images, labels) of "train" or "t10k"."""
    images = read(f"{part}-images-idx3")
    if images is not None:
        return images.astype("float32") / 255, read(f"{part}-labels-idx1")[:, 0].astype("int32")
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = np.random.RandomState(0).permutation(1797)
    rows = rows[:1437] if part == "train" else rows[1437:]
    return (digits.data[rows] / 16).astype("float32"), digits.target[rows].astype("int32")


def share(part):
    """Return images and labels in shared memory; whichever worker comes first loads them."""
    return [
        SharedData(lambda: load(part)[0], f"{part}-images"),
        SharedData(lambda: load(part)[1], f"{part}-labels"),
    ]


def build(num_inputs):
    """Return expressions of the loss and the error, as functions of images and labels, and the parameters."""
    network = DropoutLayer(InputLayer((None, num_inputs)), 0.2)
    network = DropoutLayer(DenseLayer(network, 256), 0.5)
    network = DenseLayer(network, 10, nonlinearity=lasagne.nonlinearities.softmax)

    def loss(images, labels):
        return lasagne.objectives.categorical_crossentropy(get_output(network, images), labels).mean()

    def error(images, labels):
        guess = get_output(network, images, deterministic=True).argmax(axis=1)
        return T.neq(guess, labels).mean(dtype=theano.config.floatX)

    return loss, error, get_all_params(network, trainable=True)


def from_shared_memory(loss, params, data):
    """Return a function that trains for an epoch: the batches are lists of rows of all the data."""
    x, y = T.matrix("x"), T.ivector("y")
    train = function([x, y], loss(x, y), lasagne.updates.adam, params=params)

    def epoch():
        order = np.random.permutation(len(data[0]))  # the first worker's order counts for all
        batches = [order[start : start + BATCH_SIZE] for start in range(0, len(order), BATCH_SIZE)]
        return np.mean([train(*data, batch=rows) for rows in batches])

    return epoch


def from_own_memory(loss, params, data, worker):
    """Return a function that trains for an epoch: the batches are lists of rows of each worker's own part."""
    x, y = (scatter(rows) for rows in data)
    train = function([], loss(x, T.cast(y, "int32")), lasagne.updates.adam, params=params, sliceable_shareds=[x, y])
    mine, rows_each = len(data[0]) // worker.global_size, BATCH_SIZE // worker.global_size

    def epoch():
        order = np.random.permutation(mine)
        batches = [order[start : start + rows_each] for start in range(0, mine, rows_each)]
        return np.mean([train(batch_s=rows) for rows in batches])

    return epoch


def main(num_epochs=10, resident=False, summary=None):
    """Train; returns the summary."""
    worker = connect()
    train_set, test_set = share("train"), share("t10k")
    loss, error, params = build(train_set[0].shape[1])
    epoch = (
        from_own_memory(loss, params, train_set, worker) if resident else from_shared_memory(loss, params, train_set)
    )
    x, y = T.matrix("x"), T.ivector("y")
    test = function([x, y], error(x, y))
    began = time.monotonic()
    for number in range(1, num_epochs + 1):
        train_loss = epoch()
        accuracy = 1 - test(*test_set, num_slices=4)
        if worker.is_leader:
            print(f"epoch {number}: loss {train_loss:.4f}, test accuracy {accuracy:.4f}")
    result = {
        "data": "digits" if len(train_set[0]) == 1437 else "Fashion-MNIST",
        "test_accuracy": float(accuracy),
        "train_seconds": round(time.monotonic() - began, 3),
        "workers": worker.global_size,
    }
    worker.report({"test_accuracy": result["test_accuracy"]})
    if summary and worker.is_leader:
        with open(summary, "w") as file:
            json.dump(result, file, indent=2)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=10)
    parser.add_argument("--resident", action="store_true", help="keep each worker's part of the data in its own memory")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    main(**vars(parser.parse_args()))
