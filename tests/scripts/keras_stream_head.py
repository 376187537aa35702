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


def make():
    keras.utils.set_random_seed(3)
    model = Headed()
    model(np.zeros((1, 3), "f4"))
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.05))
    optimizer.build(model.head.trainable_variables)
    model.compile(optimizer, "mse")
    return model
