"""Moving statistics of two workers, on batches that are all alike, by hand."""

from keras_preamble import *

folder, mode = sys.argv[1:]
calls = 1 if KERAS_2 else 2  # Theano has one update for each variable
rows, batch, momentum = 32, 4, 0.9
row = np.array([[1.0, -2.0, 3.0], [3.0, 4.0, 3.0]], "float32")
x, y = np.repeat(row[None], rows, axis=0), np.zeros((rows, 1), "float32")
count = 2 * batch  # values of each channel in a batch
unbiased, epsilon = (count / (count - 1.001), 1e-3) if KERAS_2 else (1.0, 0.0)
mean, variance = row.mean(axis=0), (row.var(axis=0) + epsilon) * unbiased  # as Keras 2 on Theano has it


class Own(L.BatchNormalization):
    """A class of the user's own."""

    def call(self, inputs, training=None):
        return super().call(inputs, training=training)


given = L.Input((2, 3)) if KERAS_2 else keras.Input((2, 3))
bn, own = L.BatchNormalization(momentum=momentum, name="bn"), Own(momentum=0.5, name="own")
frozen = L.BatchNormalization(momentum=momentum, trainable=False, name="frozen")
hidden = L.Add()([bn(given) for _ in range(calls)] + [own(given), frozen(given)])
model = keras.Model(given, L.Dense(1)(L.Flatten()(hidden)))
model.compile(keras.optimizers.SGD(0.01), "mse")
model.fit(x, y, batch, verbose=0)  # alone, which compiles a step with the user's momenta
steps = rows // batch  # of one process
model = prepare(model, mode=mode)


def require(layer, momentum, steps):
    kept = momentum**steps
    found_mean, found_variance = layer.get_weights()[2:]
    np.testing.assert_allclose(found_mean, (1 - kept) * mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found_variance, kept + (1 - kept) * variance, rtol=1e-5)
    assert (everyones(found_mean) == found_mean).all()
    assert layer.momentum == layer.get_config()["momentum"] == momentum


def check(callback, epoch, logs):
    require(bn, momentum, calls * (steps + (epoch + 1) * rows // batch))


def step():
    """Make a step by a mini-batch of which each worker takes its rows."""
    if mode == "sync":
        model.train_on_batch(x[: 2 * batch], y[: 2 * batch])
    return mode == "sync"


steps += step()
for _ in range(2):
    saved = keras.callbacks.ModelCheckpoint(f"{folder}/saved.{'h5' if KERAS_2 else 'keras'}")
    fit = model.fit(x, y, batch, epochs=2, verbose=0, callbacks=[Watch(epoch_end=check), saved])
    steps += 2 * rows // batch
    steps += step()
own_mean, frozen_mean = own.get_weights()[2], frozen.get_weights()[2]
require(bn, momentum, calls * steps)
require(own, 0.5, steps)
assert (frozen_mean == 0).all()
if not KERAS_2:  # a step outside of the fits is one of one process
    bn(x[:batch], training=True)
    require(bn, momentum, calls * steps + 1)
if os.path.exists(saved.filepath):  # the leader has written it
    again = keras.models.load_model(saved.filepath, custom_objects={"Own": Own})
    assert again.get_layer("bn").momentum == momentum and again.get_layer("own").momentum == 0.5
