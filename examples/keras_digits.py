"""A Keras network learns scikit-learn's handwritten digits, on Keras 3 (torch, JAX, TensorFlow) and 2.3.1 (Theano).

Start it with `platoon launch -n 2 examples/keras_digits.py` for two workers and asynchronous training, with
`platoon launch -n 2 examples/keras_digits.py --sync` for averaged gradients, or with
`python examples/keras_digits.py` alone. The environment variable KERAS_BACKEND chooses the back end.
"""

# ruff: noqa: I001 - Keras 2.3.1 can only be imported on Python 3.11 once platoon_plugins.keras has been

import argparse
import json
import time

from platoon_plugins.keras import (
    DistributedOptimizer,
    LearningRateWarmup,
    distribute,
    scale_learning_rate,
    shard,
)

import keras
import numpy as np
from sklearn.datasets import load_digits

from platoon_base import connect

BATCH_SIZE = 32
LEARNING_RATE = 0.05
MOMENTUM = 0.9
WARMUP_EPOCHS = 3
PATIENCE = 5


def load_data():
    """Return (images, labels) to train on, to validate on and to test on: 1,077, 360 and 360 of the 1,797 digits."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")[..., np.newaxis]
    labels = np.eye(10, dtype="float32")[digits.target]
    order = np.random.RandomState(0).permutation(len(images))
    return [(images[rows], labels[rows]) for rows in np.split(order, [1077, 1437])]


def build(conv):
    """Return a network of one hidden layer, or a small convolutional one."""
    layers = keras.layers
    if conv:
        first = [layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(2), layers.Flatten()]
    else:
        first = [layers.Flatten()]
    return keras.Sequential(
        [
            layers.InputLayer((8, 8, 1)),
            *first,
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.25),
            layers.Dense(10, activation="softmax"),
        ]
    )


def main(num_epochs=30, sync=False, conv=False, summary=None):
    """Train until the validation loss has stopped falling; returns the summary, on rank 0 with the test accuracy."""
    worker = connect()
    train_set, valid_set, test_set = load_data()
    model = build(conv)
    callbacks = [keras.callbacks.EarlyStopping(patience=PATIENCE, restore_best_weights=True)]
    if sync:
        rate = scale_learning_rate(LEARNING_RATE)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(rate, momentum=MOMENTUM))
        callbacks = distribute([LearningRateWarmup(rate, WARMUP_EPOCHS), *callbacks])
    else:
        optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
        callbacks = distribute(callbacks)
    model.compile(optimizer, loss="categorical_crossentropy", metrics=["accuracy"])

    began = time.monotonic()
    history = model.fit(
        *shard(*train_set),
        validation_data=shard(*valid_set),
        batch_size=BATCH_SIZE,
        epochs=num_epochs,
        callbacks=callbacks,
        verbose=2,
    )
    result = {
        "epochs": len(history.epoch),
        "stopped_by": "EarlyStopping" if len(history.epoch) < num_epochs else f"epochs >= {num_epochs}",
        "train_seconds": round(time.monotonic() - began, 3),
        "workers": worker.global_size,
    }
    if worker.is_leader:  # after fit all workers have the same weights
        result["test_accuracy"] = float(model.evaluate(*test_set, verbose=0)[1])
        print(f"test accuracy: {result['test_accuracy']:.4f}")
        worker.report({name: result[name] for name in ("test_accuracy", "epochs", "train_seconds")})
        if summary:
            with open(summary, "w") as file:
                json.dump(result, file, indent=2)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=30)
    parser.add_argument("--sync", action="store_true", help="average gradients in each step")
    parser.add_argument("--conv", action="store_true", help="a small convolutional network")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    main(**vars(parser.parse_args()))
