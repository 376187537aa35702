from keras_preamble import KERAS_2, Watch, distribute, keras, np, rank

from platoon_plugins.keras import LocalSGD

own = 1 + rank
rows = np.full((9, 1), own, "float32")
first = keras.layers.InputLayer(input_shape=(1,)) if KERAS_2 else keras.Input((1,))
model = keras.Sequential([first, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(
    keras.optimizers.SGD(1.0),
    loss=lambda _, y: -(keras.backend.mean(y, axis=-1) if KERAS_2 else keras.ops.mean(y, axis=-1)),
)
found = []
watch = Watch(batch_end=lambda callback, batch: found.append(float(callback.model.get_weights()[0][0, 0])))
model.fit(
    rows,
    np.zeros(9, "float32"),
    batch_size=1,
    shuffle=False,
    verbose=0,
    callbacks=distribute([watch], rule=LocalSGD(overlap=0.5), every_n_batches=4),
)
# After 4 steps the workers contribute 4 and 8, and before the 7th they take over the mean, 6, and go on from there.
assert found == [*(n * own for n in range(1, 7)), *(6 + n * own for n in (3, 4, 5))], found
# What came after the 4 steps: 5 by each worker, 7.5 on average, on top of 6.
assert float(model.get_weights()[0][0, 0]) == 13.5, model.get_weights()
