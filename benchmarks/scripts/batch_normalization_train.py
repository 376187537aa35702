"""One training of `benchmarks/batch_normalization.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from platoon_plugins.keras import is_main, prepare  # before Keras

import keras  # isort: skip
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH = 32
mode, seed, epochs, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
keras.utils.set_random_seed(seed)
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 8, 8, 1) / 16.0).astype("float32")
x, x_valid, y, y_valid = train_test_split(images, labels, test_size=0.25, random_state=0)

given = keras.Input((8, 8, 1))
seen = layers.Conv2D(16, 3, padding="same", activation="relu")(given)
norm = layers.BatchNormalization()
seen = layers.MaxPooling2D()(norm(seen))
seen = layers.Conv2D(32, 3, padding="same", activation="relu")(seen)
seen = layers.Dense(64, activation="relu")(layers.GlobalAveragePooling2D()(seen))
model = keras.Model(given, layers.Dense(10)(layers.Dropout(0.2)(seen)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
if mode != "plain":
    model = prepare(model, mode=mode)


class Refreshed(keras.callbacks.Callback):
    """Records the logged accuracy, and that with statistics of the whole training data."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, float]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Replace the statistics for one more evaluation."""
        if not is_main():
            return
        kept = [(variable, keras.ops.convert_to_numpy(variable)) for variable in model.non_trainable_variables]
        momentum, norm.momentum = norm.momentum, 0.0
        means = []
        for start in range(0, len(x) - BATCH + 1, BATCH):
            model(x[start : start + BATCH], training=True)
            means.append([keras.ops.convert_to_numpy(each) for each in (norm.moving_mean, norm.moving_variance)])
        for variable, mean in zip((norm.moving_mean, norm.moving_variance), np.mean(means, axis=0)):
            variable.assign(mean)
        answers = keras.ops.convert_to_numpy(model(x_valid, training=False)).argmax(axis=1)
        self.found.append((logs["val_accuracy"], float((answers == y_valid).mean())))
        norm.momentum = momentum
        for variable, value in kept:
            variable.assign(value)


refreshed = Refreshed()
model.fit(x, y, BATCH, epochs, validation_data=(x_valid, y_valid), callbacks=[refreshed], verbose=0)
if is_main():
    out.write_text(json.dumps(refreshed.found))
