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
    require_one_process(lambda wrap: own(wrap(keras.optimizers.SGD(0.5)), other_arguments), x, y, moved=0.05)
    model = own("sgd", other_arguments)
    model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD()))
