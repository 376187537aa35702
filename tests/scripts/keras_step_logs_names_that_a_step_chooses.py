from keras_preamble import *

ops = keras.ops


class Chooses(keras.Sequential):
    """Its logs have the result of a tracker under another name, and a number of which nothing keeps track."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.target_tracker.update_state(y)
        return {"target": self.target_tracker.result(), "last": ops.mean(x)}


x = np.arange(80, dtype="float32").reshape(40, 2) / 80
y = np.square(x[:, :1])
model = Chooses([keras.Input((2,)), keras.layers.Dense(1)])
model.target_tracker = keras.metrics.Mean(name="target_tracker")
model = prepare(model, mode="sync")
model.compile("sgd", loss="mse")
# One batch for each worker, whose mean counts as much as the other's.
history = model.fit(x[:32], y[:32], batch_size=16, epochs=2, validation_data=(x[32:], y[32:]), verbose=0).history
assert set(history) == {"target", "last", "val_target", "val_last"}, history
for name, expected in (
    ("target", y[:32].mean()),
    ("last", x[:32].mean()),
    ("val_target", y[32:].mean()),
    ("val_last", x[32:].mean()),
):
    np.testing.assert_allclose(history[name], [expected] * 2, rtol=1e-5, err_msg=f"{name} on rank {rank}")
