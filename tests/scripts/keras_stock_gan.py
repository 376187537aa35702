"""A GAN of a class of its own, with two optimizers and a train_step for each back end."""

import keras
from keras import layers
from sklearn.datasets import load_digits

latent_dim = 8
discriminator = keras.Sequential(
    [keras.Input((8, 8, 1)), layers.Conv2D(8, 3, strides=2), layers.LeakyReLU(0.2), layers.Flatten(), layers.Dense(1)],
    name="discriminator",
)
generator = keras.Sequential(
    [keras.Input((latent_dim,)), layers.Dense(64), layers.Reshape((8, 8, 1)), layers.Activation("sigmoid")],
    name="generator",
)


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.built = True

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def losses_of(self, real_images):
        batch_size = keras.ops.shape(real_images)[0]
        noise = keras.random.normal(shape=(batch_size, self.latent_dim), seed=self.seed_generator)
        generated = self.generator(noise)
        real, fake = self.discriminator(real_images), self.discriminator(generated)
        ones, zeros = keras.ops.ones((batch_size, 1)), keras.ops.zeros((batch_size, 1))
        return self.loss_fn(ones, real) + self.loss_fn(zeros, fake), self.loss_fn(ones, fake)

    def logged(self, d_loss, g_loss):
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


if keras.backend.backend() == "torch":
    import torch

    class Trained(GAN):
        def train_step(self, real_images):
            for which, network, optimizer in (
                (0, self.discriminator, self.d_optimizer),
                (1, self.generator, self.g_optimizer),
            ):
                self.zero_grad()
                losses = self.losses_of(real_images)
                losses[which].backward()
                with torch.no_grad():
                    optimizer.apply([v.value.grad for v in network.trainable_weights], network.trainable_weights)
            return self.logged(*losses)

elif keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    class Trained(GAN):
        def train_step(self, real_images):
            for which, network, optimizer in (
                (0, self.discriminator, self.d_optimizer),
                (1, self.generator, self.g_optimizer),
            ):
                with tf.GradientTape() as tape:
                    losses = self.losses_of(real_images)
                gradients = tape.gradient(losses[which], network.trainable_weights)
                optimizer.apply_gradients(zip(gradients, network.trainable_weights))
            return self.logged(*losses)

else:
    import jax

    class Trained(GAN):
        def compile(self, d_optimizer, g_optimizer, loss_fn):
            super().compile(d_optimizer, g_optimizer, loss_fn)
            d_optimizer.build(self.discriminator.trainable_variables)
            g_optimizer.build(self.generator.trainable_variables)
            self.of_optimizers = [*d_optimizer.variables, *g_optimizer.variables]  # parts of the state, as JAX needs it

        def train_step(self, state, real_images):
            parts = (self.trainable_variables, self.non_trainable_variables, self.metrics_variables)
            values = {
                id(v): value for part, at in zip(parts, (0, 1, 3)) for v, value in zip(part, state[at], strict=True)
            }
            known = {id(v): v for part in parts for v in part}
            for which, network, optimizer in (
                (0, self.discriminator, self.d_optimizer),
                (1, self.generator, self.g_optimizer),
            ):

                def loss_of(weights):
                    now = {**values, **dict(zip([id(v) for v in network.trainable_variables], weights))}
                    with keras.StatelessScope(state_mapping=[(known[each], now[each]) for each in known]) as scope:
                        losses = self.losses_of(real_images)
                    return losses[which], (losses, scope.get_current_value(self.seed_generator.state))

                weights = [values[id(v)] for v in network.trainable_variables]
                (_, (losses, seed)), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
                own = [values[id(v)] for v in optimizer.variables]
                weights, own = optimizer.stateless_apply(own, gradients, weights)
                values.update(zip([id(v) for v in network.trainable_variables], weights))
                values.update(zip([id(v) for v in optimizer.variables], own))
                values[id(self.seed_generator.state)] = seed
            with keras.StatelessScope([(known[id(v)], values[id(v)]) for v in self.metrics_variables]) as scope:
                logs = self.logged(*losses)
            trainable, non_trainable = ([values[id(v)] for v in part] for part in parts[:2])
            return logs, (trainable, non_trainable, state[2], [scope.get_current_value(v) for v in parts[2]])


images = load_digits().images[:320].reshape(-1, 8, 8, 1).astype("float32") / 16
gan = Trained(discriminator=discriminator, generator=generator, latent_dim=latent_dim)
gan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = gan.fit(images, batch_size=32, epochs=2)
model = gan
