import sys

from keras_preamble import KERAS_2, Watch, distribute, keras, np, rank

from platoon_base.rules import parse_rule

rule, own = parse_rule(sys.argv[2]), 1 + rank
several = not KERAS_2 and keras.backend.backend() != "torch"
at_once = int(sys.argv[3]) if several else 1  # batches of one execution; rounds that are due follow it
count = 9 if at_once == 1 else 8
rows = np.full((count, 64), own, "float32")
first = keras.layers.InputLayer(input_shape=(64,)) if KERAS_2 else keras.Input((64,))
model = keras.Sequential([first, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])  # 16 a fragment
model.compile(
    keras.optimizers.SGD(1.0),
    **({} if at_once == 1 else {"steps_per_execution": at_once}),
    loss=lambda _, y: -(keras.backend.mean(y, axis=-1) if KERAS_2 else keras.ops.mean(y, axis=-1)),
)


def check(callback, batch):
    step = batch + 1
    for fragment, value in enumerate(callback.model.get_weights()[0][::16, 0].tolist()):
        turn = -(-2 * (fragment + 1) // at_once) * at_once
        over = step > turn + (2 if rule.overlap else 0)  # before the next batch they synchronize
        assert value == (1.5 * turn + own * (step - turn) if over else own * step), (step, fragment, value)


model.fit(
    rows,
    np.zeros(count, "float32"),
    batch_size=1,
    shuffle=False,
    verbose=0,
    callbacks=distribute([Watch(batch_end=check)], rule=rule, every_n_batches=8),
)
assert model.get_weights()[0].reshape(-1).tolist() == [1.5 * count] * 64, model.get_weights()
