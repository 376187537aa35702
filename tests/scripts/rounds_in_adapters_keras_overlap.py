from keras_preamble import KERAS_2, Watch, distribute, keras, np, rank
from platoon_plugins.keras import LocalSGD

own, count = 1 + rank, 9
rows = np.full((count, 64), own, "float32")
first = keras.layers.InputLayer(input_shape=(64,)) if KERAS_2 else keras.Input((64,))
model = keras.Sequential([first, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(
    keras.optimizers.SGD(1.0),
    loss=lambda _, y: -(keras.backend.mean(y, axis=-1) if KERAS_2 else keras.ops.mean(y, axis=-1)),
)


def check(callback, batch):
    step = batch + 1
    turn = 4 if step > 6 else 0  # of the last round that is completed; before the next batch they synchronize
    found = callback.model.get_weights()[0].reshape(-1).tolist()
    assert found == [1.5 * turn + own * (step - turn)] * 64, (step, found)


model.fit(
    rows,
    np.zeros(count, "float32"),
    batch_size=1,
    shuffle=False,
    verbose=0,
    callbacks=distribute([Watch(batch_end=check)], rule=LocalSGD(overlap=0.5), every_n_batches=4),
)
assert model.get_weights()[0].reshape(-1).tolist() == [1.5 * count] * 64, model.get_weights()
