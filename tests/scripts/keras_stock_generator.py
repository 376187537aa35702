"""Batches that a generator draws at random, with steps_per_epoch and validation_steps."""

import keras
import numpy as np
from keras import layers


def generate(batch_size):
    while True:
        x = np.random.random((batch_size, 8)).astype("float32")
        yield x, x.sum(axis=1, keepdims=True)


model = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
history = model.fit(generate(16), steps_per_epoch=10, epochs=3, validation_data=generate(16), validation_steps=4)
