"""Weights that a callback makes trainable or adds during a fit: shared from the next epoch on, or refused."""

from keras_preamble import *
from platoon_base.errors import ConfigurationError

how, mode = sys.argv[-2:]
L = keras.layers
x = np.random.default_rng(0).normal(size=(90, 6)).astype("float32")
y = np.tanh(x.sum(1, keepdims=True))
keras.utils.set_random_seed(1 + rank)
model = keras.Sequential([keras.Input((6,)), L.Dense(8, activation="tanh"), L.Dense(1)])


def compiled():
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(DistributedOptimizer(optimizer) if mode == "sync" else optimizer, "mse")


compiled()
if how != "compile":
    model.optimizer.build(model.trainable_variables)
model.layers[0].trainable = False
if how in ("lora", "compile"):
    compiled()


def change(callback, epoch, *logs):
    if epoch != 1 or kernels:
        return
    kernels.append(model.layers[0].get_weights()[0])
    if how == "lora":
        model.layers[0].trainable = True
        model.layers[0].enable_lora(2)
    else:
        model.layers[0].trainable = True
    if how in ("lora", "compile"):
        compiled()
    model.make_train_function(force=True)


kernels = []
at = {"middle": "batch_end", "end": "epoch_end"}.get(how, "epoch_begin")
if how == "middle":
    watch = Watch(batch_end=lambda callback, batch: change(callback, batch))
else:
    watch = Watch(**{at: change})
prepare(model, mode=mode)
try:
    history = model.fit(x, y, 8, 4, verbose=0, callbacks=[watch], validation_data=(x, y)).history
except ConfigurationError as error:
    if how == "middle":
        assert mode == "async"
        assert "kernel" in str(error) and "in on_epoch_begin or on_epoch_end" in str(error), error
    else:
        assert mode == "sync" and how in ("lora", "compile")
        assert "end this fit, compile, and call fit again" in str(error), error
else:
    assert how in ("end", "lora")
    assert how == "lora" or abs(model.layers[0].get_weights()[0] - kernels[0]).max() > 1e-3
    values = flat([*model.get_weights(), *[keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]])
    assert (everyones(values) == values).all()
    np.testing.assert_allclose(history["val_loss"][-1], model.evaluate(x, y, verbose=0), rtol=1e-5)
    assert history["val_loss"][-1] < history["val_loss"][0]
