import numpy as np

from keras_preamble import L, Watch, data, dense, distribute, everyones, flat, keras, shard
from platoon_base import AveragedEASGD, CenterMomentum, DiLoCo

x, y = data(128)
constraints = keras.constraints


def require_constraints(model):
    kernel = model.get_layer("positive").get_weights()[0]
    assert kernel.min() >= 0, kernel.min()
    assert kernel.max() > 0.01
    norms = np.linalg.norm(model.get_layer("unit").get_weights()[0], axis=0)
    assert abs(norms - 1).max() < 1e-5, norms


def ends(callback, epoch, logs):
    require_constraints(callback.model)  # the model has the center, which callbacks save


for rule, period in (AveragedEASGD(), 1), (CenterMomentum(), 2), (DiLoCo(), 2):
    layers = [
        L.Dense(8, kernel_constraint=constraints.NonNeg(), name="positive"),
        L.Dense(8, kernel_constraint=constraints.UnitNorm(), name="unit"),
    ]
    model = dense(extra=layers, optimizer=keras.optimizers.SGD(0.3))
    callbacks = distribute([Watch(epoch_end=ends)], rule=rule, every_n_batches=period)
    model.fit(*shard(x, y), epochs=4, batch_size=8, verbose=0, callbacks=callbacks)
    require_constraints(model)
    everyone = everyones(flat(model.get_weights()))
    assert (everyone == everyone[0]).all()
