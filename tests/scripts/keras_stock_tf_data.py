"""A tf.data.Dataset that shuffles without a seed, in batches, with prefetch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

x = np.random.random((300, 10)).astype("float32")
y = np.random.randint(2, size=(300, 1)).astype("float32")
batch_size = 32
train_dataset = tf.data.Dataset.from_tensor_slices((x[:250], y[:250]))
train_dataset = train_dataset.shuffle(buffer_size=1024).batch(batch_size).prefetch(tf.data.AUTOTUNE)
val_dataset = tf.data.Dataset.from_tensor_slices((x[250:], y[250:])).batch(50)

model = keras.Sequential([layers.Input((10,)), layers.Dense(16, "relu"), layers.Dense(1, "sigmoid")])
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["binary_accuracy"])
history = model.fit(train_dataset, epochs=2, validation_data=val_dataset)
