import numpy as np

from keras_preamble import EASGD, KERAS_2, L, distribute, keras, rank, size, worker

ROWS, BATCH = 48, 4
x, y = np.eye(ROWS, dtype="float32"), np.arange(1, ROWS + 1, dtype="float32")[:, None]


def marking(optimizer=None):
    layers = (
        [L.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(ROWS,))]
        if KERAS_2
        else [keras.Input((ROWS,)), L.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(float(BATCH)), loss=lambda y, p: -y * p)
    return model


class Rows(keras.callbacks.Callback):
    def __init__(self, marks):
        super().__init__()
        self.marks, self.seen = marks, {}

    def weights(self):
        return self.model.get_weights()[0].ravel().copy()

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.before, self.seen[epoch] = epoch, self.weights(), []

    def on_train_batch_end(self, batch, logs=None):
        now = self.weights()
        step, self.before = now - self.before, now
        rows = np.flatnonzero(abs(step) > 0.5)
        assert abs(step[rows] - self.marks[rows]).max() < 1e-2, (rows, step)  # with their own labels, once
        self.seen[self.epoch].append([int(row) for row in rows])


def rows_of_fit(*data, epochs=3, marks=y.ravel(), **options):
    watch = Rows(marks)
    options = {"batch_size": BATCH, "epochs": epochs, "verbose": 0, **options}
    marking().fit(*data, callbacks=distribute([watch], rule=EASGD(), every_n_batches=1000), **options)
    return watch.seen


def report(name, seen):
    for epoch, batches in seen.items():
        worker.report({f"{name} {epoch} {rank}": ";".join(" ".join(map(str, batch)) for batch in batches)})


def fixed(seen):
    own = set(range(rank, ROWS, size))
    return all(set(sum(batches, [])) == own for batches in seen.values())
