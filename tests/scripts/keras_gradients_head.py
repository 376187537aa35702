"""A fit with averaged gradients, whose batches differ in size and number between workers; against steps by hand."""

from keras_preamble import *

KIND = sys.argv[2]
rng = np.random.RandomState(1)
rows = [8, 5]
x = [rng.randn(4, n, 3, 6).astype("f4") for n in rows]
y = [rng.randn(4, n, 3, 2).astype("f4") for n in rows]


def make():
    keras.utils.set_random_seed(5)
    inputs = keras.Input((3, 6))
    hidden = L.Masking()(inputs) if KIND == "masked" else inputs
    model = keras.Model(inputs, L.Dense(2)(L.Dense(4, activation="tanh")(hidden)))
    return model


if KIND == "masked":
    x[0][:, 1:, 1:] = 0
batches = [4, 3][rank]
model = make()
reduction = "sum" if KIND == "sum" else "sum_over_batch_size"
model.compile(DistributedOptimizer(keras.optimizers.SGD(0.05)), keras.losses.MeanSquaredError(reduction=reduction))
flatten = lambda a, count: a[:count].reshape(-1, 3, a.shape[-1])
seen = []
watch = Watch(batch_end=lambda *_: seen.append(model.optimizer.gradient_average.on_device))
mine = flatten(x[rank], batches), flatten(y[rank], batches)
model.fit(*mine, batch_size=rows[rank], epochs=2, shuffle=False, verbose=0, callbacks=distribute([watch]))
assert seen and all(seen)
same_everywhere(model)
