"""A convolutional network for digits: arrays, validation_split, evaluate."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

num_classes = 10
input_shape = (8, 8, 1)

images, labels = load_digits(return_X_y=True)
images = images.astype("float32").reshape(-1, *input_shape) / 16
order = np.random.permutation(len(images))
images, labels = images[order], keras.utils.to_categorical(labels[order], num_classes)
x_train, y_train, x_test, y_test = images[:1200], labels[:1200], images[1200:], labels[1200:]
print("x_train shape:", x_train.shape)

model = keras.Sequential(
    [
        keras.Input(shape=input_shape),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(num_classes, activation="softmax"),
    ]
)
model.summary()

batch_size = 128
epochs = 3
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, validation_split=0.1)

score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])
