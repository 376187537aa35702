"""A loop of one's own over train_on_batch."""

import keras
import numpy as np
from keras import layers

x = np.random.random((256, 12)).astype("float32")
y = x @ np.random.random((12, 1)).astype("float32")

model = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
losses = []
for epoch in range(2):
    order = np.random.permutation(len(x))
    for start in range(0, len(x), 32):
        rows = order[start : start + 32]
        losses.append(model.train_on_batch(x[rows], y[rows]))
    print("epoch", epoch, "loss", float(losses[-1]))
