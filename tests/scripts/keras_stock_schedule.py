"""A learning rate that falls to zero over all steps of one process."""

import keras
import numpy as np
from keras import layers

x_train = np.random.random((320, 16)).astype("float32")
y_train = (x_train.sum(axis=1, keepdims=True) > 8).astype("float32")

batch_size = 32
epochs = 4
total_steps = len(x_train) // batch_size * epochs
schedule = keras.optimizers.schedules.CosineDecay(0.01, decay_steps=total_steps)
optimizer = keras.optimizers.AdamW(learning_rate=schedule, weight_decay=1e-4)

model = keras.Sequential([layers.Input((16,)), layers.Dense(16, "relu"), layers.Dense(1, "sigmoid")])
model.compile(optimizer=optimizer, loss="binary_crossentropy", metrics=["binary_accuracy"])
history = model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs)
learning_rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
print("Learning rate at the end:", learning_rate)
assert learning_rate < 1e-4, learning_rate
