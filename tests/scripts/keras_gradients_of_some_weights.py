"""Programs are compiled once, in the first fit; workers have other numbers of batches. Against NumPy."""

from keras_preamble import *
import jax


class Headed(keras.Model):
    """Trains its last layer alone, in a step of its own."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = L.Dense(4, activation="relu"), L.Dense(1)

    def call(self, x):
        return self.head(self.hidden(x))

    def train_step(self, state, batch):
        weights, fixed, slots, metrics = state
        x, y = batch
        gradients_of = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (_, (loss, out, fixed, metrics)), slopes = gradients_of(
            weights, fixed, metrics, x, y, None, training=True, optimizer_variables=slots
        )
        head, slots = self.optimizer.stateless_apply(slots, slopes[2:], weights[2:])
        logs, metrics = self._update_metrics_variables(metrics, loss, x, y, out, None)
        return logs, ([*weights[:2], *head], fixed, slots, metrics)


keras.utils.set_random_seed(3)
model = Headed()
model(np.zeros((1, 3), "f4"))
optimizer = DistributedOptimizer(keras.optimizers.SGD(0.05))
optimizer.build(model.head.trainable_variables)
model.compile(optimizer, "mse")
rng = np.random.RandomState(4)
x, y = rng.rand(2, 20, 3).astype("f4"), rng.rand(2, 20, 1).astype("f4")
batches = [3, 5]
w1, b1, w2, b2 = (np.array(v, "f8") for v in model.get_weights())
for fit in range(3):
    n = 4 * batches[rank]
    model.fit(x[rank, :n], y[rank, :n], batch_size=4, shuffle=False, verbose=0, callbacks=distribute())
    assert model.optimizer.gradient_average.on_device
    for k in range(5):
        theirs = [r for r in range(2) if k < batches[r]]
        rows = slice(4 * k, 4 * k + 4)
        hidden = np.maximum(np.concatenate([x[r, rows] for r in theirs]) @ w1 + b1, 0)
        errors = hidden @ w2 + b2 - np.concatenate([y[r, rows] for r in theirs])
        w2, b2 = w2 - 0.1 * hidden.T @ errors / len(errors), b2 - 0.1 * errors.mean(0)
    for mine, right in zip(model.get_weights(), [w1, b1, w2, b2]):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6, err_msg=f"fit {fit}")
