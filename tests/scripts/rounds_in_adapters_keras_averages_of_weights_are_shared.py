from keras_preamble import EASGD, data, dense, distribute, everyones, flat, keras, np, shard, size
from platoon_base.errors import ConfigurationError
from platoon_plugins.keras import LocalSGD
from refusing import raises


def fit(rows, targets, batch_size, validation, callbacks):
    model = dense(optimizer=keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.8))
    history = model.fit(
        rows,
        targets,
        batch_size=batch_size,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=validation,
        callbacks=callbacks,
    )
    return model, history.history


def swapped(rule, **options):
    callbacks = distribute([keras.callbacks.SwapEMAWeights(**options)], rule=rule, every_n_batches=1)
    return fit(*shard(x, y), 8, shard(*validation), callbacks)


if hasattr(keras.callbacks, "SwapEMAWeights"):  # Keras 3
    (x, y), validation = data(10 * size * 8), data(40, seed=1)
    alone, expected = fit(x, y, 8 * size, validation, [keras.callbacks.SwapEMAWeights()])
    plain, unaveraged = fit(x, y, 8 * size, validation, [])
    assert abs(np.subtract(expected["val_loss"], unaveraged["val_loss"])).max() > 1e-3

    model, found = swapped(LocalSGD(moments=True))
    np.testing.assert_allclose(found["val_loss"], expected["val_loss"], rtol=1e-4)
    assert abs(flat(alone.get_weights()) - flat(model.get_weights())).max() < 1e-5

    model, found = swapped(EASGD(moments=True))
    assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()

    model = dense(optimizer=keras.optimizers.SGD(1e-6, use_ema=True, ema_momentum=0.99))
    before = everyones(flat(model.get_weights()))[0]
    callbacks = distribute(rule=EASGD(moments=True), every_n_batches=1)
    model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=callbacks)
    assert abs(flat(model.get_weights()) - before).max() < 1e-4, "averages begin with the weights, not with zeros"

    with raises(ConfigurationError, "leave swap_on_epoch out"):
        swapped(EASGD(moments=True), swap_on_epoch=True)
