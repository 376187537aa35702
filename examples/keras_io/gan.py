"""A GAN that draws handwritten digits, with a train_step of its own for torch and JAX, and two optimizers.

Start it with `platoon launch -n 2 examples/keras_io/gan.py`, or with `python examples/keras_io/gan.py` alone. Three
lines make it a distributed one: the import, the optimizers in compile(), and the call of fit.
"""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

from platoon_plugins.keras import DistributedOptimizer, distribute, shard

latent_dim = 16
batch_size = 64
epochs = 30


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.built = True

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        d_optimizer.build(self.discriminator.trainable_variables)
        g_optimizer.build(self.generator.trainable_variables)
        if keras.backend.backend() == "jax":  # what a step changes has to be a variable of the model
            self.optimizer_variables = [*d_optimizer.variables, *g_optimizer.variables]

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def noise(self, rows):
        return keras.random.normal((rows, self.latent_dim), seed=self.seed_generator)

    def d_loss(self, images):
        generated = self.generator(self.noise(len(images)))
        predictions = self.discriminator(ops.concatenate([images, generated]))
        labels = ops.concatenate([ops.ones((len(images), 1)), ops.zeros((len(images), 1))])
        return self.loss_fn(labels, predictions)

    def g_loss(self, images):
        predictions = self.discriminator(self.generator(self.noise(len(images))))
        return self.loss_fn(ops.ones((len(images), 1)), predictions)

    if keras.backend.backend() == "torch":

        def train_step(self, images):
            import torch

            for loss_of, part, optimizer, tracker in (
                (self.d_loss, self.discriminator, self.d_optimizer, self.d_loss_tracker),
                (self.g_loss, self.generator, self.g_optimizer, self.g_loss_tracker),
            ):
                self.zero_grad()
                loss = loss_of(images)
                loss.backward()
                weights = part.trainable_weights
                with torch.no_grad():
                    optimizer.apply([weight.value.grad for weight in weights], weights)
                tracker.update_state(loss)
            return {metric.name: metric.result() for metric in self.metrics}

    elif keras.backend.backend() == "jax":

        def train_step(self, state, images):
            import jax

            trainable, non_trainable, optimizer_variables, metrics_variables = state
            variables = [*self.trainable_variables, *self.non_trainable_variables, *self.metrics_variables]
            values = dict(zip(map(id, variables), [*trainable, *non_trainable, *metrics_variables]))
            for loss_of, part, optimizer, tracker in (
                (self.d_loss, self.discriminator, self.d_optimizer, self.d_loss_tracker),
                (self.g_loss, self.generator, self.g_optimizer, self.g_loss_tracker),
            ):

                def compute(weights, loss_of=loss_of, part=part):
                    mapping = [(variable, values[id(variable)]) for variable in variables]
                    mapping += zip(part.trainable_variables, weights)
                    with keras.StatelessScope(state_mapping=mapping) as scope:
                        loss = loss_of(images)
                    return loss, scope.get_current_value(self.seed_generator.state)

                weights = [values[id(variable)] for variable in part.trainable_variables]
                (loss, seed), gradients = jax.value_and_grad(compute, has_aux=True)(weights)
                own = [values[id(variable)] for variable in optimizer.variables]
                weights, own = optimizer.stateless_apply(own, gradients, weights)
                tracked = tracker.stateless_update_state([values[id(v)] for v in tracker.variables], loss)
                values[id(self.seed_generator.state)] = seed
                for known, new in (
                    (part.trainable_variables, weights),
                    (optimizer.variables, own),
                    (tracker.variables, tracked),
                ):
                    values.update((id(variable), value) for variable, value in zip(known, new))
            logs = {
                metric.name: metric.stateless_result([values[id(v)] for v in metric.variables])
                for metric in self.metrics
            }
            return logs, (
                [values[id(variable)] for variable in self.trainable_variables],
                [values[id(variable)] for variable in self.non_trainable_variables],
                optimizer_variables,
                [values[id(variable)] for variable in self.metrics_variables],
            )


images = load_digits().images.reshape(-1, 8, 8, 1).astype("float32") / 16

discriminator = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(32, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Flatten(),
        layers.Dense(1),
    ]
)
generator = keras.Sequential(
    [
        keras.Input((latent_dim,)),
        layers.Dense(2 * 2 * 32),
        layers.Reshape((2, 2, 32)),
        layers.Conv2DTranspose(32, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
    ]
)
gan = GAN(discriminator, generator, latent_dim)
adam = keras.optimizers.Adam
gan.compile(d_optimizer=DistributedOptimizer(adam(3e-4)), g_optimizer=DistributedOptimizer(adam(3e-4)))
history = gan.fit(shard(images), batch_size=batch_size, epochs=epochs, callbacks=distribute(), verbose=2)

drawn = generator.predict(keras.random.normal((10, latent_dim), seed=1), verbose=0)
print(f"Losses: {history.history['d_loss'][-1]:.4f} {history.history['g_loss'][-1]:.4f}")
print(f"Mean of ten drawn digits: {drawn.mean():.4f}, of the real ones: {images.mean():.4f}")
