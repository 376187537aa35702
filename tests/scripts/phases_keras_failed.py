"""A fit that fails in its validation, and a second one without validation, whose steps sleep."""

from keras_preamble import data, dense, distribute, keras
from sleeping import report, sleep


class Failing(keras.callbacks.Callback):
    def on_test_batch_begin(self, batch, logs=None):
        raise ZeroDivisionError


class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        sleep("compute", 0.04)


model = dense()
try:
    model.fit(*data(64), batch_size=8, verbose=0, validation_data=data(16), callbacks=distribute([Failing()]))
except ZeroDivisionError:
    model.fit(*data(64), batch_size=8, verbose=0, callbacks=distribute([Slow()]))
report()
