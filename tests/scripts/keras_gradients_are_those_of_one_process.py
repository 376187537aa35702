"""A fit with averaged gradients, whose batches differ in size and number between workers, against one process."""

from keras_preamble import *

KIND = sys.argv[2]
rng = np.random.RandomState(1)
rows, batches = [8, 5], [4, 3]
x = [rng.randn(4, n, 3, 6).astype("f4") for n in rows]
y = [rng.randn(4, n, 3, 2).astype("f4") for n in rows]
if KIND == "masked":
    x[0][:, 1:, 1:] = 0


def make(wrap):
    keras.utils.set_random_seed(5)
    inputs = keras.Input((3, 6))
    hidden = L.Masking()(inputs) if KIND == "masked" else inputs
    model = keras.Model(inputs, L.Dense(2)(L.Dense(4, activation="tanh")(hidden)))
    reduction = "sum" if KIND == "sum" else "sum_over_batch_size"
    model.compile(wrap(keras.optimizers.SGD(0.05)), keras.losses.MeanSquaredError(reduction=reduction))
    return model


model, alone = make(DistributedOptimizer), make(lambda optimizer: optimizer)
seen = []
watch = Watch(batch_end=lambda *_: seen.append(model.optimizer.gradient_average.on_device))
mine = [each[rank][: batches[rank]].reshape(-1, 3, each[rank].shape[-1]) for each in (x, y)]
model.fit(*mine, batch_size=rows[rank], epochs=2, shuffle=False, verbose=0, callbacks=distribute([watch]))
assert seen and all(seen)
same_everywhere(model)
for _ in range(2):
    for k in range(4):
        those = [r for r in range(2) if k < batches[r]]  # who has a batch left
        alone.train_on_batch(np.concatenate([x[r][k] for r in those]), np.concatenate([y[r][k] for r in those]))
for found, expected in zip(model.get_weights(), alone.get_weights()):
    # A small element is what large gradients have left: its rounding is that of the largest.
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6 * max(1.0, abs(expected).max()))
