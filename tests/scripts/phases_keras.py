"""A fit whose batches, steps and validations sleep; reports what the clock says and what the script has slept."""

from keras_preamble import KERAS_2, DistributedOptimizer, data, dense, distribute, keras
from sleeping import report, sleep


class Batches(keras.utils.Sequence if KERAS_2 else keras.utils.PyDataset):
    """Eight batches, each of which takes 20 ms to load."""

    def __init__(self):
        if not KERAS_2:
            super().__init__()
        self.x, self.y = data(64)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        sleep("loading", 0.02)
        return self.x[8 * index : 8 * index + 8], self.y[8 * index : 8 * index + 8]


class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        sleep("compute", 0.04)

    def on_test_batch_begin(self, batch, logs=None):
        sleep("validation", 0.03)


class SlowAtEnds(Slow):
    def on_train_batch_end(self, batch, logs=None):
        sleep("compute", 0.04)


model = dense(optimizer=DistributedOptimizer("sgd"))
for callback in (Slow(), SlowAtEnds()):
    options = {"workers": 0} if KERAS_2 else {}
    model.fit(Batches(), epochs=3, verbose=0, validation_data=data(16), callbacks=distribute([callback]), **options)
report()
