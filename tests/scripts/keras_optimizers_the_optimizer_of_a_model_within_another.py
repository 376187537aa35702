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


def made(wrap, named=True):
    outer = Outer(dense(optimizer=wrap(keras.optimizers.SGD(0.5))))
    outer.compile()
    if named:
        outer.inner_optimizer = outer.inner.optimizer
    return outer


with raises(PlatoonError, "self.inner_optimizer = self.inner.optimizer"):
    fit(made(DistributedOptimizer, named=False), x, y)
require_one_process(made, x, y)
