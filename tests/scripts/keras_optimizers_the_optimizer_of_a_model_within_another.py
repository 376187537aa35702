from keras_preamble import *
import torch

x, y = data(8 * size * 4)


class Outer(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.tracker = inner, keras.metrics.Mean("loss")

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        self.zero_grad()
        loss = keras.ops.mean(keras.losses.categorical_crossentropy(data[1], self.inner(data[0])))
        loss.backward()
        weights = self.inner.trainable_weights
        with torch.no_grad():
            self.inner.optimizer.apply([weight.value.grad for weight in weights], weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def made(optimizer):
    outer = Outer(dense(optimizer=optimizer))
    outer.compile()
    return outer


one, outer = made(keras.optimizers.SGD(0.5)), made(DistributedOptimizer(keras.optimizers.SGD(0.5)))
one.fit(x, y, batch_size=8 * size, shuffle=False, verbose=0)
fit = lambda: outer.fit(*shard(x, y), batch_size=8, shuffle=False, verbose=0, callbacks=distribute())
with raises(PlatoonError, "self.inner_optimizer = self.inner.optimizer"):
    fit()
outer = made(DistributedOptimizer(keras.optimizers.SGD(0.5)))
outer.inner_optimizer = outer.inner.optimizer
fit()
assert abs(flat(one.get_weights()) - flat(outer.get_weights())).max() < 1e-5
same_everywhere(outer)
