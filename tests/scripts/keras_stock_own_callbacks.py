"""Callbacks of one's own from the guide: a stop at the least loss with its weights, a rate per epoch, all the hooks."""

import keras
import numpy as np
from sklearn.datasets import load_digits


class EarlyStoppingAtMinLoss(keras.callbacks.Callback):
    def __init__(self, patience=0):
        super().__init__()
        self.patience = patience
        self.best_weights = None

    def on_train_begin(self, logs=None):
        self.wait = 0
        self.stopped_epoch = 0
        self.best = np.inf

    def on_epoch_end(self, epoch, logs=None):
        current = logs.get("loss")
        if np.less(current, self.best):
            self.best = current
            self.wait = 0
            self.best_weights = self.model.get_weights()
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.stopped_epoch = epoch
                self.model.stop_training = True
                print("Restoring model weights from the end of the best epoch.")
                self.model.set_weights(self.best_weights)

    def on_train_end(self, logs=None):
        if self.stopped_epoch > 0:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")


class CustomLearningRateScheduler(keras.callbacks.Callback):
    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def on_epoch_begin(self, epoch, logs=None):
        if not hasattr(self.model.optimizer, "learning_rate"):
            raise ValueError('Optimizer must have a "learning_rate" attribute.')
        lr = self.model.optimizer.learning_rate
        scheduled_lr = self.schedule(epoch, lr)
        self.model.optimizer.learning_rate = scheduled_lr
        print(f"\nEpoch {epoch}: Learning rate is {float(np.array(scheduled_lr))}.")


class CustomCallback(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        print(f"Starting training; got log keys: {list(logs.keys())}")

    def on_test_begin(self, logs=None):
        print(f"Start testing; got log keys: {list(logs.keys())}")

    def on_predict_batch_end(self, batch, logs=None):
        print(f"...Predicting: end of batch {batch}; got log keys: {list(logs.keys())}")

    def on_train_batch_end(self, batch, logs=None):
        print("Up to batch {}, the average loss is {:7.2f}.".format(batch, logs["loss"]))

    def on_test_batch_end(self, batch, logs=None):
        print("Up to batch {}, the average loss is {:7.2f}.".format(batch, logs["loss"]))


def get_model():
    model = keras.Sequential()
    model.add(keras.layers.Dense(1))
    model.compile(
        optimizer=keras.optimizers.RMSprop(learning_rate=0.1),
        loss="mean_squared_error",
        metrics=["mean_absolute_error"],
    )
    return model


x, y = load_digits(return_X_y=True)
x_train, y_train, x_test, y_test = x[:1000] / 16, y[:1000], x[1000:1200] / 16, y[1000:1200]
model = get_model()
model.fit(x_train, y_train, batch_size=128, epochs=1, verbose=0, validation_split=0.5, callbacks=[CustomCallback()])
model.evaluate(x_test, y_test, batch_size=128, verbose=0, callbacks=[CustomCallback()])
model.predict(x_test, batch_size=128, callbacks=[CustomCallback()])

model = get_model()
model.fit(
    x_train, y_train, batch_size=64, epochs=3, verbose=0, callbacks=[CustomLearningRateScheduler(lambda e, lr: 0.01)]
)
model = get_model()
stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", epoch == 3))
history = model.fit(
    x_train,
    y_train,
    batch_size=64,
    steps_per_epoch=5,
    epochs=6,
    verbose=0,
    callbacks=[EarlyStoppingAtMinLoss(patience=6), stop],
)
