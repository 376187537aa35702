"""A variational autoencoder of handwritten digits, with a train_step of its own for torch and JAX.

Start it with `platoon launch -n 2 examples/keras_io/vae.py`, or with `python examples/keras_io/vae.py` alone. Three
lines make it a distributed one: the import, the optimizer in compile(), and the call of fit.
"""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

from platoon_plugins.keras import DistributedOptimizer, distribute, shard

latent_dim = 2
batch_size = 64
epochs = 30


class Sampling(layers.Layer):
    """Uses (z_mean, z_log_var) to sample z, the vector that encodes a digit."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = keras.random.normal(ops.shape(z_mean), seed=self.seed_generator)
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")
        self.built = True

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.kl_loss_tracker]

    def losses_of(self, images):
        z_mean, z_log_var, z = self.encoder(images)
        cross_entropy = keras.losses.binary_crossentropy(images, self.decoder(z))
        reconstruction_loss = ops.mean(ops.sum(cross_entropy, axis=(1, 2)))
        kl_loss = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
        kl_loss = ops.mean(ops.sum(kl_loss, axis=1))
        return reconstruction_loss + kl_loss, reconstruction_loss, kl_loss

    if keras.backend.backend() == "torch":

        def train_step(self, images):
            import torch

            self.zero_grad()
            losses = self.losses_of(images)
            losses[0].backward()
            weights = self.trainable_weights
            with torch.no_grad():
                self.optimizer.apply([weight.value.grad for weight in weights], weights)
            for metric, value in zip(self.metrics, losses):
                metric.update_state(value)
            return {metric.name: metric.result() for metric in self.metrics}

    elif keras.backend.backend() == "jax":

        def train_step(self, state, images):
            import jax

            trainable, non_trainable, optimizer_variables, metrics_variables = state

            def compute(trainable):
                mapping = [*zip(self.trainable_variables, trainable), *zip(self.non_trainable_variables, non_trainable)]
                with keras.StatelessScope(state_mapping=mapping) as scope:
                    losses = self.losses_of(images)
                after = [scope.get_current_value(variable) for variable in self.non_trainable_variables]
                return losses[0], (losses, after)

            (_, (losses, non_trainable)), gradients = jax.value_and_grad(compute, has_aux=True)(trainable)
            trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, gradients, trainable)
            logs, updated = {}, []
            for metric, value in zip(self.metrics, losses):
                count = len(updated)
                own = metrics_variables[count : count + len(metric.variables)]
                own = metric.stateless_update_state(own, value)
                logs[metric.name] = metric.stateless_result(own)
                updated += own
            return logs, (trainable, non_trainable, optimizer_variables, updated)


images = load_digits().images.reshape(-1, 8, 8, 1).astype("float32") / 16

encoder_inputs = keras.Input((8, 8, 1))
x = layers.Conv2D(16, 3, activation="relu", strides=2, padding="same")(encoder_inputs)
x = layers.Conv2D(32, 3, activation="relu", strides=2, padding="same")(x)
x = layers.Flatten()(x)
x = layers.Dense(16, activation="relu")(x)
z_mean = layers.Dense(latent_dim, name="z_mean")(x)
z_log_var = layers.Dense(latent_dim, name="z_log_var")(x)
encoder = keras.Model(encoder_inputs, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])], name="encoder")
decoder = keras.Sequential(
    [
        keras.Input((latent_dim,)),
        layers.Dense(2 * 2 * 32, activation="relu"),
        layers.Reshape((2, 2, 32)),
        layers.Conv2DTranspose(32, 3, activation="relu", strides=2, padding="same"),
        layers.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same"),
        layers.Conv2D(1, 3, activation="sigmoid", padding="same"),
    ]
)
vae = VAE(encoder, decoder)
vae.compile(optimizer=DistributedOptimizer(keras.optimizers.Adam(2e-3)))
history = vae.fit(shard(images), batch_size=batch_size, epochs=epochs, callbacks=distribute(), verbose=2)

print(f"Losses: {history.history['loss'][0]:.4f} {history.history['loss'][-1]:.4f}")
