import numpy as np
from keras_preamble import EASGD, data, dense, distribute, everyones, flat, keras, shard, size

from platoon_plugins.keras import LocalSGD


def moments(model):
    """Return the optimizer's state that has the shape of a weight."""
    optimizer = model.optimizer
    values = (
        [np.array(keras.ops.convert_to_numpy(v)) for v in optimizer.variables]
        if hasattr(keras, "ops")
        else optimizer.get_weights()
    )
    shapes = {w.shape for w in model.get_weights()}
    return flat([value for value in values if value.shape in shapes])


def momentum():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def trained(optimizer, rule, period=1):
    model = dense(optimizer=optimizer)
    callbacks = distribute(rule=rule, every_n_batches=period)
    model.fit(*shard(x, y), batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
    return model


x, y = data(10 * size * 8)
alone = dense(optimizer=momentum())
alone.fit(x, y, batch_size=8 * size, shuffle=False, verbose=0)
model = trained(momentum(), LocalSGD(moments=True))
assert abs(moments(alone)).max() > 1e-3
assert abs(moments(alone) - moments(model)).max() < 1e-5
assert abs(flat(alone.get_weights()) - flat(model.get_weights())).max() < 1e-5
assert (everyones(moments(model)) == moments(model)).all()
own = everyones(moments(trained(momentum(), LocalSGD())))
assert (own[0] != own[1]).any()

adam = trained(keras.optimizers.Adam(0.01), EASGD(moments=True), period=2)
everyone = everyones(moments(adam))
assert (everyone == everyone[0]).all(), "the end leaves the center's moments on all"
assert abs(everyone[0]).max() > 1e-4
later = adam.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD(moments=True)))
assert np.isfinite(later.history["loss"]).all()
