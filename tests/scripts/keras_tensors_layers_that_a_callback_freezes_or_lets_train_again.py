"""The first or the last one, in the first steps or later; against one process."""

from keras_preamble import *
from keras_tensors_order import *


class Freezing(keras.callbacks.Callback):
    def __init__(self, layer, batch, trainable):
        super().__init__()
        self.what = layer, batch, trainable

    def on_train_batch_begin(self, batch, logs=None):
        layer, when, trainable = self.what
        if batch == when:
            self.model.get_layer(layer).trainable = trainable


def fit(model, x, y, rows, layer, when, wrap=lambda callbacks: callbacks):
    for trainable in (False, True):  # to let a layer train again is a change within the second fit
        callbacks = [Freezing(layer, when, trainable)]
        model.fit(x, y, batch_size=rows, shuffle=False, verbose=0, callbacks=wrap(callbacks))


(x, y), (x1, y1) = data(24, seed=0), data(24, seed=1)
both = lambda a, b: np.concatenate([a.reshape(6, 4, -1), b.reshape(6, 4, -1)], 1).reshape(48, -1)
together = both(x, x1), both(y, y1)
mine = (x1, y1) if rank else (x, y)
for layer in ("hidden", "out"):
    for when in (1, 2, 4):
        model, alone = dense(optimizer=DistributedOptimizer("sgd")), dense()
        before = flat(model.get_weights())
        fit(model, *mine, 4, layer, when, distribute)
        fit(alone, *together, 8, layer, when)
        np.testing.assert_allclose(flat(model.get_weights()), flat(alone.get_weights()), atol=1e-6)
        assert abs(same_everywhere(model) - before).max() > 0.01
