"""Such as TensorBoard, which writes them; and a deep copy of the list is for a fit of its own."""

from keras_preamble import *
import copy

x, y = data(64)
xv, yv = data(31, seed=1)


class AtTestEnd(keras.callbacks.Callback):
    seen = []

    def on_test_end(self, logs=None):
        self.seen.append(dict(logs))


model = dense(optimizer=keras.optimizers.SGD(0.0))
names = ("loss", "accuracy")
expected = dict(zip(names, dense().evaluate(xv, yv, verbose=0)))
checkpoint = keras.callbacks.ModelCheckpoint(
    os.path.join(sys.argv[1], "a.weights.h5"), save_weights_only=True, save_freq=3
)
callbacks = distribute([AtTestEnd(), checkpoint])
for own in (copy.deepcopy(callbacks), copy.deepcopy(callbacks), callbacks):
    model.fit(*shard(x, y), validation_data=shard(xv, yv), epochs=2, batch_size=8, verbose=0, callbacks=own)
assert len(AtTestEnd.seen) == 6
for logs in AtTestEnd.seen:
    assert all(abs(logs[name] - expected[name]) < 1e-6 for name in names), (logs, expected)
model.evaluate(xv[rank:], yv[rank:], verbose=0, callbacks=[AtTestEnd()])  # outside of a fit it is one's own
