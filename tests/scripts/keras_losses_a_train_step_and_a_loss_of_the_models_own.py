"""They may call compute_loss without x, and give it other arguments; batches count by their rows."""

from keras_preamble import *


def own(optimizer, other_arguments):
    class Own(OwnStep, keras.Sequential):
        def loss_of(self, x, y):
            y_pred = self(x, training=True)
            return self.compute_loss(y, y_pred) if other_arguments else self.compute_loss(y=y, y_pred=y_pred)

        if other_arguments:

            def compute_loss(self, *tensors):
                y, y_pred = tensors if len(tensors) == 2 else tensors[1:3]  # of JAX's train_step
                return keras.ops.mean(keras.ops.square(y - y_pred))

    keras.utils.set_random_seed(5)
    model = Own([keras.Input((6,)), L.Dense(8, activation="tanh"), L.Dense(3)])
    model.compile(optimizer, loss="mse")
    return model


x, y = data(37)
for other_arguments in (False, True):
    alone = own(keras.optimizers.SGD(0.5), other_arguments)
    start = flat(alone.get_weights())
    alone.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    model = own(DistributedOptimizer(keras.optimizers.SGD(0.5)), other_arguments)
    model.fit(*shard(x, y), batch_size=8, shuffle=False, verbose=0, callbacks=distribute())
    assert abs(flat(alone.get_weights()) - start).max() > 0.05
    assert abs(flat(alone.get_weights()) - flat(model.get_weights())).max() < 1e-5
    model = own("sgd", other_arguments)
    model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD()))
