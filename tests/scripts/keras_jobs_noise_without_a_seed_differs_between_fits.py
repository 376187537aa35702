"""As the noise of a VAE or a GAN, `keras.random.normal(shape)`; what the script draws next is the same again."""

from keras_preamble import *

backend = keras.backend.backend()


class Noise(L.Layer):
    def call(self, x):
        if KERAS_2:
            return x + keras.backend.random_normal(keras.backend.shape(x))
        if backend == "jax":  # which allows no other
            return x
        return x + keras.random.normal(keras.ops.shape(x))


def draw():
    draws = [np.random.rand()]
    if not KERAS_2:
        draws.append(float(keras.ops.convert_to_numpy(keras.random.normal(()))))
    if backend == "torch":
        import torch

        draws.append(float(torch.rand(())))
    if backend == "tensorflow":
        import tensorflow as tf

        draws.append(float(tf.random.normal(())))
    return draws


class Note(keras.callbacks.Callback):
    losses, draws = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        self.draws.append(np.random.rand())


x = np.zeros((32, 6), "float32")
model = dense(extra=[Noise()], optimizer=keras.optimizers.SGD(0.0), metrics=())
np.random.seed(6) if KERAS_2 else keras.utils.set_random_seed(6)
between = []
for fit in range(3):
    model.fit(x, x[:, :3] + 1, batch_size=8, verbose=0, callbacks=distribute([Note()]))
    drawn = everyones(draw())
    assert (drawn == drawn[0]).all(), drawn
    between += drawn[0].tolist()
assert len(set(between)) == 3 * len(draw()), between  # a script draws other numbers after each fit
for numbers in (Note.draws, *([Note.losses] if backend != "jax" else [])):
    assert len(set(everyones(numbers).ravel())) == 3 * 4 * size, everyones(numbers)
