"""A small convolutional network in Keras: a plain script to which one line was added to distribute it.

Start it with `platoon launch -n 2 examples/keras_convnet.py`, or with `python examples/keras_convnet.py` alone.
docs/keras.md shows the line and its import as a diff; a test takes them back and runs the plain script.
"""

# ruff: noqa: I001 - Keras 2.3.1 can only be imported on Python 3.11 once platoon_plugins.keras has been

from platoon_plugins.keras import prepare
import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

num_classes = 10
input_shape = (8, 8, 1)
batch_size = 32
epochs = 20

# Images of 8 x 8 pixels with values from 0 to 16, and the digit that each shows
digits = load_digits()
x = digits.images.reshape(-1, *input_shape).astype("float32") / 16
y = keras.utils.to_categorical(digits.target, num_classes)
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=1)
x_train, x_valid, y_train, y_valid = train_test_split(x_train, y_train, test_size=0.1, random_state=2)

model = keras.Sequential(
    [
        keras.layers.InputLayer(input_shape),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.25),
        keras.layers.Dense(num_classes, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer=keras.optimizers.Adam(0.01), metrics=["accuracy"])
callbacks = [keras.callbacks.EarlyStopping(patience=5)]
model = prepare(model)
model.fit(
    x_train,
    y_train,
    batch_size,
    epochs,
    validation_data=(x_valid, y_valid),
    callbacks=callbacks,
)

loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"Test loss: {loss:.4f}")
print(f"Test accuracy: {accuracy:.4f}")
