from keras_preamble import *
from platoon_base import AveragedEASGD, CenterMomentum, DiLoCo

x, y = data(128)
constraints = keras.constraints


def require_constraints(model):
    kernel = model.get_layer("positive").get_weights()[0]
    assert kernel.min() >= 0, kernel.min()
    assert kernel.max() > 0.01
    norms = np.linalg.norm(model.get_layer("unit").get_weights()[0], axis=0)
    assert abs(norms - 1).max() < 1e-5, norms


class Begins(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if self.begun:
            require_constraints(self.model)
        self.begun = True

    begun = False


class OfVariables(constraints.Constraint):
    """It takes a variable, as Keras passes one."""

    def __call__(self, w):
        return constraints.NonNeg()(w if KERAS_2 else w.value)


def ends(callback, epoch, logs):
    require_constraints(callback.model)  # the model has the center, which callbacks save


for rule, period in (AveragedEASGD(), 1), (CenterMomentum(), 2), (DiLoCo(), 2):
    layers = [
        L.Dense(8, kernel_constraint=OfVariables(), name="positive"),
        L.Dense(8, kernel_constraint=constraints.UnitNorm(), name="unit"),
    ]
    model = dense(extra=layers, optimizer=keras.optimizers.SGD(0.3))
    callbacks = distribute([Watch(epoch_end=ends), Begins()], rule=rule, every_n_batches=period)
    model.fit(*shard(x, y), epochs=4, batch_size=8, verbose=0, callbacks=callbacks)
    require_constraints(model)
    same_everywhere(model)
