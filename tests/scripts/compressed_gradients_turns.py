"""One optimizer trains two weights of the same shape in turns, one of them by gradients of zero."""

from keras_preamble import DistributedOptimizer, distribute, keras, np
import torch
from gradients_here import rows, worker

gradient = torch.from_numpy(np.random.default_rng(worker.global_rank).standard_normal((20_000,)).astype("float32"))


class Model(keras.Model):
    def build(self, shape):
        self.moved, self.still = (self.add_weight(shape=(20_000,), initializer="zeros") for _ in range(2))
        super().build(shape)

    def call(self, x):
        return x

    def train_step(self, data):
        self.optimizer.apply([gradient.clone()], [self.moved])
        self.optimizer.apply([torch.zeros(20_000)], [self.still])
        return {}


model = Model()
model.build((None, 64))
optimizer = keras.optimizers.SGD(1.0)
optimizer.build(model.trainable_variables)
model.compile(DistributedOptimizer(optimizer), loss="mse")
model.fit(rows[:96], rows[:96], epochs=2, batch_size=48, verbose=0, shuffle=False, callbacks=distribute())
assert np.abs(keras.ops.convert_to_numpy(model.moved)).max() > 1
assert not keras.ops.convert_to_numpy(model.still).any()
worker.barrier("end")
