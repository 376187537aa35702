"""Callbacks of all sorts, and the best checkpoint loaded after fit."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

x, y = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x[:800] / 16, y[:800], test_size=0.25)

model = keras.Sequential([layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])


class LossAndErrorPrintingCallback(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.batches = batch

    def on_epoch_end(self, epoch, logs=None):
        print("The average loss for epoch {} is {:7.2f}.".format(epoch, logs["loss"]))


def lr_schedule(epoch, lr):
    return lr if epoch < 2 else lr * 0.9


callbacks = [
    keras.callbacks.ModelCheckpoint("best_model.keras", save_best_only=True, monitor="val_loss"),
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_lr=0.0001),
    keras.callbacks.LearningRateScheduler(lr_schedule),
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True, verbose=1),
    keras.callbacks.CSVLogger("training.csv"),
    keras.callbacks.TerminateOnNaN(),
    LossAndErrorPrintingCallback(),
]
history = model.fit(x_train, y_train, batch_size=32, epochs=4, callbacks=callbacks, validation_split=0.2, verbose=1)

best = keras.models.load_model("best_model.keras")
test_loss, test_acc = best.evaluate(x_test, y_test)
print("Test accuracy", test_acc)
rows = np.genfromtxt("training.csv", delimiter=",", names=True)
assert len(rows) == len(history.history["loss"])
