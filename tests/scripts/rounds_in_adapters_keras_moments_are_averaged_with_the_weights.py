from keras_preamble import EASGD, data, dense, distribute, everyones, flat, keras, np, shard, size
from platoon_base.errors import ConfigurationError
from platoon_plugins.keras import LocalSGD
from refusing import raises


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


def trained(optimizer, rule, period=1, callbacks=()):
    model = dense(optimizer=optimizer)
    callbacks = distribute(list(callbacks), rule=rule, every_n_batches=period)
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


class Moments(keras.callbacks.Callback):
    """Keeps the moments of the latest step."""

    def on_train_batch_end(self, batch, logs=None):
        self.latest = moments(self.model)


look = Moments()
left = everyones(moments(trained(momentum(), LocalSGD(), callbacks=[look])))
own = everyones(look.latest)
assert (own[0] != own[1]).any(), "each worker keeps its own while it trains"
assert (left == own[0]).all(), "the first worker's are left on all"

adam = trained(keras.optimizers.Adam(0.01), EASGD(moments=True), period=2)
everyone = everyones(moments(adam))
assert (everyone == everyone[0]).all(), "the end leaves the center's moments on all"
assert abs(everyone[0]).max() > 1e-4
later = adam.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD(moments=True)))
assert np.isfinite(later.history["loss"]).all()


class Changes(keras.callbacks.Callback):
    """Changes the state of the optimizer at the end of an epoch, and keeps what all begin the next with."""

    def __init__(self, change):
        super().__init__()
        self.change, self.begun = change, []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(moments(self.model))

    def on_epoch_end(self, epoch, logs=None):
        self.change(self.model)


def reset(model):
    for variable in model.optimizer.variables:
        if "learning_rate" not in variable.path:
            variable.assign(np.zeros(variable.shape, variable.dtype))


def move(model):
    model.set_weights([w + 1 for w in model.get_weights()])


if hasattr(keras, "ops"):
    for change in (reset, move):
        model = dense(optimizer=keras.optimizers.Adam(0.01))
        callback = Changes(change)
        callbacks = distribute([callback], rule=EASGD(moments=True), every_n_batches=2)
        model.fit(*shard(x, y), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
        begun = everyones(callback.begun[1])
        assert (begun[0] == begun[1]).all(), "what a callback leaves is on all workers"
        assert (begun[0] == 0).all() == (change is reset)

    model = dense(optimizer=keras.optimizers.Adam(0.01))
    model.second = keras.optimizers.Adam(0.01)
    with raises(ConfigurationError, "call optimizer.build(variables)"):
        model.fit(*shard(x, y), verbose=0, callbacks=distribute(rule=EASGD(moments=True)))
