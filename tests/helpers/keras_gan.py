"""A GAN with a train_step of its own and two optimizers, for the tests, on each back end of Keras 3."""

import keras
from keras import ops

L = keras.layers
BACKEND = keras.backend.backend()


@keras.saving.register_keras_serializable()
class Gan(keras.Model):
    """Learns rows of six numbers; the noise comes with the data, so that runs can be compared."""

    def __init__(self, critics=1):  # steps of the discriminator before one of the generator
        super().__init__()
        keras.utils.set_random_seed(5)
        self.critics = critics
        self.discriminator = keras.Sequential([keras.Input((6,)), L.Dense(8, activation="tanh"), L.Dense(1)])
        self.generator = keras.Sequential([keras.Input((3,)), L.Dense(7, activation="tanh"), L.Dense(6)])
        self.d_tracker, self.g_tracker = keras.metrics.Mean("d_loss"), keras.metrics.Mean("g_loss")
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.built = True

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        if BACKEND == "jax":  # a variable that a step changes has to be among those of the model
            d_optimizer.build(self.discriminator.trainable_variables)
            g_optimizer.build(self.generator.trainable_variables)
            self.optimizer_variables = [*d_optimizer.variables, *g_optimizer.variables]

    def get_config(self):
        return {"critics": self.critics}

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def get_compile_config(self):
        both = {"d_optimizer": self.d_optimizer, "g_optimizer": self.g_optimizer}
        return {name: keras.optimizers.serialize(optimizer) for name, optimizer in both.items()}

    def compile_from_config(self, config):
        self.compile(**{name: keras.optimizers.deserialize(value) for name, value in config.items()})

    @property
    def metrics(self):
        return [self.d_tracker, self.g_tracker]

    def d_loss(self, real, noise):
        ones = ops.ones_like(real[:, :1])
        verdict = self.discriminator(ops.concatenate([real, self.generator(noise)]))
        return self.loss_fn(ops.concatenate([ones, 1 - ones]), verdict)

    def g_loss(self, real, noise):
        return self.loss_fn(ops.ones_like(real[:, :1]), self.discriminator(self.generator(noise)))

    def parts(self):
        first = [(self.d_loss, self.discriminator, self.d_optimizer, self.d_tracker)] * self.critics
        return [*first, (self.g_loss, self.generator, self.g_optimizer, self.g_tracker)]

    if BACKEND == "torch":

        def train_step(self, data):
            import torch

            for loss_of, network, optimizer, tracker in self.parts():
                self.zero_grad()
                loss = loss_of(*data)
                loss.backward()
                weights = network.trainable_weights
                with torch.no_grad():
                    optimizer.apply([weight.value.grad for weight in weights], weights)
                tracker.update_state(loss.detach())
            return self.get_metrics_result()

    elif BACKEND == "tensorflow":

        def train_step(self, data):
            import tensorflow as tf

            for loss_of, network, optimizer, tracker in self.parts():
                with tf.GradientTape() as tape:
                    loss = loss_of(*data)
                weights = network.trainable_weights
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
                tracker.update_state(loss)
            return self.get_metrics_result()

    else:

        def train_step(self, state, data):
            import jax

            state = [list(part) for part in state]
            trainable, others, _, metrics = state
            places = [{id(v): i for i, v in enumerate(known)} for known in (
                self.trainable_variables, self.non_trainable_variables, [], self.metrics_variables)]  # fmt: skip
            for loss_of, network, optimizer, tracker in self.parts():
                mine = [places[0][id(v)] for v in network.trainable_variables]
                own = [places[1][id(v)] for v in optimizer.variables]

                def compute(weights, loss_of=loss_of, mine=mine):
                    values = list(trainable)
                    for i, value in zip(mine, weights):
                        values[i] = value
                    with keras.StatelessScope(state_mapping=list(zip(self.trainable_variables, values))):
                        return loss_of(*data)

                weights = [trainable[i] for i in mine]
                loss, gradients = jax.value_and_grad(compute)(weights)
                weights, variables = optimizer.stateless_apply([others[i] for i in own], gradients, weights)
                for i, value in [*zip(mine, weights)]:
                    trainable[i] = value
                for i, value in zip(own, variables):
                    others[i] = value
                at = [places[3][id(v)] for v in tracker.variables]
                for i, value in zip(at, tracker.stateless_update_state([metrics[i] for i in at], loss)):
                    metrics[i] = value
            logs = {
                tracker.name: tracker.stateless_result([metrics[places[3][id(v)]] for v in tracker.variables])
                for tracker in self.metrics
            }
            return logs, tuple(state)
