"""A denoising autoencoder: the images are their own targets, then noise is added to the inputs."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits


def preprocess(array):
    return np.reshape(array.astype("float32") / 16.0, (len(array), 8, 8, 1))


def noise(array):
    noisy = array + 0.4 * np.random.normal(loc=0.0, scale=1.0, size=array.shape)
    return np.clip(noisy, 0.0, 1.0)


digits = load_digits().images[:600]
train_data, test_data = preprocess(digits[:500]), preprocess(digits[500:])
noisy_train_data, noisy_test_data = noise(train_data), noise(test_data)

inputs = layers.Input(shape=(8, 8, 1))
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(inputs)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = keras.Model(inputs, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")

autoencoder.fit(
    x=train_data, y=train_data, epochs=1, batch_size=64, shuffle=True, validation_data=(test_data, test_data)
)
predictions = autoencoder.predict(test_data)
history = autoencoder.fit(
    x=noisy_train_data,
    y=train_data,
    epochs=2,
    batch_size=64,
    shuffle=True,
    validation_data=(noisy_test_data, test_data),
)
model = autoencoder
