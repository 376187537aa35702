"""Batches of a PyDataset that shuffles in __init__ and after each epoch, without a seed."""

import math

import keras
import numpy as np
from keras import layers


class Batches(keras.utils.PyDataset):
    def __init__(self, x_set, y_set, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = x_set, y_set
        self.batch_size = batch_size
        self.indexes = np.arange(len(x_set))
        self.on_epoch_end()

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        rows = self.indexes[idx * self.batch_size : (idx + 1) * self.batch_size]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.indexes)


x = np.random.random((330, 20)).astype("float32")
y = x @ np.random.random((20, 1)).astype("float32")
train_gen = Batches(x[:250], y[:250], batch_size=32)
val_gen = Batches(x[250:], y[250:], batch_size=32)

model = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(1)])
model.compile(optimizer="rmsprop", loss="mse", metrics=["mae"])
history = model.fit(train_gen, epochs=3, validation_data=val_gen)
