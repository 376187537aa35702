"""Fine-tuning: a frozen base with a new head, then all layers at a low rate, with a new compile."""

import keras
import numpy as np
from keras import layers

x = np.random.random((240, 8, 8, 3)).astype("float32")
y = (x.mean(axis=(1, 2, 3)) > 0.5).astype("float32")

base_model = keras.Sequential(
    [
        keras.Input((8, 8, 3)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
base_model.trainable = False

inputs = keras.Input(shape=(8, 8, 3))
scale_layer = layers.Rescaling(scale=2.0, offset=-1)
hidden = base_model(scale_layer(inputs), training=False)
hidden = layers.Dropout(0.2)(hidden)
outputs = layers.Dense(1)(hidden)
model = keras.Model(inputs, outputs)
model.summary(show_trainable=True)

model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
print("Fitting the top layer of the model")
model.fit(x, y, epochs=2, validation_split=0.2)

base_model.trainable = True
model.compile(
    optimizer=keras.optimizers.Adam(1e-5),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
print("Fitting the end-to-end model")
history = model.fit(x, y, epochs=1, validation_split=0.2)
model.save("finetuned.keras")
