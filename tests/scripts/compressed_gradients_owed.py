"""Train a linear loss, whose gradients depend on no weight: all that they were must be in the weights, but the rest."""

from keras_preamble import DistributedOptimizer, KERAS_2, distribute, keras, np, shard
from gradients_here import worker

EPOCHS, N = 24, 20_000
rows = np.random.default_rng(0).standard_normal((8, N)).astype("float32")
first = keras.layers.InputLayer(input_shape=(N,)) if KERAS_2 else keras.Input((N,))
model = keras.Sequential([first, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(
    DistributedOptimizer(keras.optimizers.SGD(1.0)),
    loss=lambda _, y: keras.backend.mean(y, axis=-1) if KERAS_2 else keras.ops.mean(y, axis=-1),
)
targets = np.zeros(len(rows), "float32")
data = shard(rows, targets)
model.fit(*data, epochs=EPOCHS, batch_size=2, verbose=0, shuffle=False, callbacks=distribute())
(weights,) = model.get_weights()
exact = -EPOCHS * 2 * rows.astype("f8").mean(axis=0)
owed = np.abs(weights[:, 0] - exact).max() / np.abs(rows).max()
assert 1e-3 < owed < 1.5, owed
worker.barrier("end")
