"""sample_weight as an argument, and as the third array of validation_data; weighted metrics."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x_train, y_train, x_val, y_val = x[:500] / 16, y[:500], x[500:600] / 16, y[500:600]
sample_weight = np.ones(shape=(len(y_train),))
sample_weight[y_train == 5] = 2.0

model = keras.Sequential([layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
model.compile(
    keras.optimizers.RMSprop(1e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
)
val_weight = np.where(y_val == 5, 2.0, 1.0)
history = model.fit(x_train, y_train, sample_weight=sample_weight, epochs=2, validation_data=(x_val, y_val, val_weight))
