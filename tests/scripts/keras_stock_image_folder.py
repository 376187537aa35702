"""Images of a folder by image_dataset_from_directory, shuffled, with a split and augmentation."""

import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

for label, brightness in ("Cat", 60), ("Dog", 180):
    os.makedirs(f"PetImages/{label}", exist_ok=True)
    for number in range(30):
        path = f"PetImages/{label}/{number}.png"
        if not os.path.exists(path):
            image = np.clip(np.random.normal(brightness, 40, size=(12, 12, 3)), 0, 255).astype("uint8")
            tf.io.write_file(path, tf.io.encode_png(image))

image_size = (12, 12)
batch_size = 8
train_ds, val_ds = keras.utils.image_dataset_from_directory(
    "PetImages", validation_split=0.2, subset="both", seed=1337, image_size=image_size, batch_size=batch_size
)
flip = layers.RandomFlip("horizontal")
train_ds = train_ds.map(lambda img, label: (flip(img, training=True), label), num_parallel_calls=tf.data.AUTOTUNE)
train_ds = train_ds.prefetch(tf.data.AUTOTUNE)
val_ds = val_ds.prefetch(tf.data.AUTOTUNE)

inputs = keras.Input(shape=image_size + (3,))
x = layers.Rescaling(1.0 / 255)(inputs)
x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
x = layers.BatchNormalization()(x)
x = layers.GlobalAveragePooling2D()(x)
outputs = layers.Dense(1, activation=None)(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Adam(3e-4),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(name="acc")],
)
callbacks = [keras.callbacks.ModelCheckpoint("save_at_{epoch}.keras")]
history = model.fit(train_ds, epochs=2, callbacks=callbacks, validation_data=val_ds)
