import jax
import keras
import numpy as np

keras.distribution.initialize()
rank = jax.process_index()
assert jax.process_count() == 2 and len(jax.local_devices()) == 1
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
rng = np.random.default_rng(3)
x, y = rng.standard_normal((2, 12, 5)), rng.standard_normal((2, 12, 1))
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit(x[rank].astype("f4"), y[rank].astype("f4"), batch_size=4, epochs=1, shuffle=False, verbose=0)
w = np.ones((5, 1))
for k in range(0, 12, 4):
    rows = x[:, k : k + 4].reshape(8, 5)
    w -= 0.1 * 2 * rows.T @ (rows @ w - y[:, k : k + 4].reshape(8, 1)) / 8
np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-5)
print("rank", rank, "equals one process")
