import numpy as np

from keras_preamble import EASGD, KERAS_2, L, Watch, data, dense, distribute, everyones, flat, keras, shard

x, y = data(90)
layers = [L.BatchNormalization(name="bn"), L.Dropout(0.5, name="drop")]
model = dense(optimizer=keras.optimizers.SGD(0.1), extra=layers)
start = model.get_weights()

ones = np.ones((4, 8), "float32")
masks, of_seeds = [], []


def mask():
    if not KERAS_2:
        return keras.ops.convert_to_numpy(model.get_layer("drop")(ones, training=True))
    K, layer = keras.backend, model.get_layer("drop")
    return K.function([layer.input, K.learning_phase()], [layer.output])([ones, 1])[0]


def statistics():
    return flat(model.get_layer("bn").get_weights()[2:])


def seeds():
    found = [v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")]
    assert found
    return np.asarray([keras.ops.convert_to_numpy(v) for v in found])


def local(callback, batch):
    callback.model
    callback.own = statistics()


def check(callback, epoch, logs):
    everyone = everyones(callback.own)
    assert abs(everyone[0] - everyone[1]).max() > 1e-3
    assert abs(statistics() - everyone.mean(axis=0)).max() < 1e-6
    masks[:] = everyones(mask())
    if not KERAS_2:
        of_seeds[:] = everyones(seeds())


watch = Watch(batch_end=local, epoch_end=check)
callbacks = distribute([watch], rule=EASGD())
model.fit(*shard(x, y), epochs=2, batch_size=10, verbose=0, callbacks=callbacks)
assert (everyones(statistics()) == statistics()).all()
draws = [np.random.rand(3)]
if not KERAS_2 and keras.backend.backend() == "torch":
    import torch

    draws.append(torch.rand(3).numpy())
if not KERAS_2 and keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    draws.append(tf.random.uniform([3]).numpy())
for draw in draws:  # what the script draws next, to split its data maybe, is the same everywhere
    assert (everyones(draw) == everyones(draw)[0]).all()

if not KERAS_2:
    states = np.array(of_seeds)
    assert (states[0, :, 0] != states[1, :, 0]).all()
    if keras.backend.backend() != "torch":  # which draws masks from its own generator
        assert (states[:, :, 1] >= 10).all(), states  # one draw a batch, never averaged
    assert (everyones(seeds()) == seeds()).all()  # after fit
assert (masks[0] != masks[1]).any()
assert set(np.unique(masks)) == {0.0, 2.0}
