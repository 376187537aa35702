"""A small residual network with BatchNormalization, on integer labels."""

import keras
from keras import layers
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1) / 16.0

inputs = keras.Input(shape=(8, 8, 1))
x = layers.Conv2D(8, 3, padding="same")(inputs)
x = layers.BatchNormalization()(x)
x = layers.Activation("relu")(x)
residual = x
x = layers.SeparableConv2D(8, 3, padding="same")(x)
x = layers.BatchNormalization()(x)
x = layers.add([x, residual])
x = layers.GlobalAveragePooling2D()(x)
x = layers.Dropout(0.25)(x)
outputs = layers.Dense(10)(x)
model = keras.Model(inputs, outputs)

model.compile(
    optimizer=keras.optimizers.Adam(3e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc"), keras.metrics.SparseTopKCategoricalAccuracy(k=3)],
)
history = model.fit(images[:500], labels[:500], epochs=2, validation_data=(images[500:600], labels[500:600]))
img_predictions = model.predict(images[:1])
print(f"This image is most likely a {img_predictions[0].argmax()}.")
