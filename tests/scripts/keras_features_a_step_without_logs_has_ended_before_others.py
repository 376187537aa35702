from keras_preamble import *


class Silent(OwnStep, keras.Sequential):
    def loss_of(self, inputs, targets):
        return keras.ops.mean(keras.ops.square(self(inputs, training=True) - targets))

    def train_step(self, *args):
        told = super().train_step(*args)
        return ({}, told[1]) if isinstance(told, tuple) else {}


keras.utils.set_random_seed(5)
model = Silent([keras.Input((6,)), L.Dense(400, activation="tanh"), L.Dense(400), L.Dense(3)])
model.compile(DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
x, y = data(64 * [12, 20][rank], seed=rank)
model.fit(x, y, batch_size=64, epochs=2, verbose=0, callbacks=distribute())
same_everywhere(model)
