"""A variational autoencoder: losses and metrics of its own in a train_step, for each back end."""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

latent_dim = 2


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = keras.random.normal(shape=ops.shape(z_mean), seed=self.seed_generator)
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


encoder_inputs = keras.Input(shape=(8, 8, 1))
x = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(encoder_inputs)
x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
z_mean = layers.Dense(latent_dim, name="z_mean")(x)
z_log_var = layers.Dense(latent_dim, name="z_log_var")(x)
encoder = keras.Model(encoder_inputs, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])], name="encoder")
encoder.summary()

latent_inputs = keras.Input(shape=(latent_dim,))
x = layers.Reshape((4, 4, 8))(layers.Dense(4 * 4 * 8, activation="relu")(latent_inputs))
decoder_outputs = layers.Conv2DTranspose(1, 3, activation="sigmoid", strides=2, padding="same")(x)
decoder = keras.Model(latent_inputs, decoder_outputs, name="decoder")


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.kl_loss_tracker]

    def call(self, inputs):
        return self.decoder(self.encoder(inputs)[2])

    def losses_of(self, data):
        z_mean, z_log_var, z = self.encoder(data)
        reconstruction = self.decoder(z)
        reconstruction_loss = ops.mean(
            ops.sum(keras.losses.binary_crossentropy(data, reconstruction), axis=(1, 2)),
        )
        kl_loss = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
        kl_loss = ops.mean(ops.sum(kl_loss, axis=1))
        return reconstruction_loss + kl_loss, reconstruction_loss, kl_loss

    def logged(self, losses):
        for tracker, loss in zip(self.metrics, losses):
            tracker.update_state(loss)
        return {"loss": self.metrics[0].result(), "kl_loss": self.kl_loss_tracker.result()}


if keras.backend.backend() == "torch":
    import torch

    class TrainedVAE(VAE):
        def train_step(self, data):
            self.zero_grad()
            losses = self.losses_of(data)
            losses[0].backward()
            gradients = [v.value.grad for v in self.trainable_weights]
            with torch.no_grad():
                self.optimizer.apply(gradients, self.trainable_weights)
            return self.logged(losses)

elif keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    class TrainedVAE(VAE):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                losses = self.losses_of(data)
            grads = tape.gradient(losses[0], self.trainable_weights)
            self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
            return self.logged(losses)

else:
    import jax

    class TrainedVAE(VAE):
        def stateless_losses(self, trainable_variables, non_trainable_variables, data):
            mapping = [
                *zip(self.trainable_variables, trainable_variables),
                *zip(self.non_trainable_variables, non_trainable_variables),
            ]
            with keras.StatelessScope(state_mapping=mapping) as scope:
                losses = self.losses_of(data)
            non_trainable_variables = [scope.get_current_value(v) for v in self.non_trainable_variables]
            return losses[0], (losses, non_trainable_variables)

        def train_step(self, state, data):
            trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables = state
            grad_fn = jax.value_and_grad(self.stateless_losses, has_aux=True)
            (_, (losses, non_trainable_variables)), grads = grad_fn(trainable_variables, non_trainable_variables, data)
            trainable_variables, optimizer_variables = self.optimizer.stateless_apply(
                optimizer_variables, grads, trainable_variables
            )
            with keras.StatelessScope(state_mapping=list(zip(self.metrics_variables, metrics_variables))) as scope:
                logs = self.logged(losses)
            metrics_variables = [scope.get_current_value(v) for v in self.metrics_variables]
            return logs, (trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables)


digits = np.expand_dims(load_digits().images[:640], -1).astype("float32") / 16
vae = TrainedVAE(encoder, decoder)
vae.build((None, 8, 8, 1))
vae.compile(optimizer=keras.optimizers.Adam())
history = vae.fit(digits, epochs=2, batch_size=128)
z_sample = np.array([[0.5, -0.5]])
x_decoded = vae.decoder.predict(z_sample, verbose=0)
print("decoded", x_decoded[0].reshape(8, 8).shape)
model = vae
