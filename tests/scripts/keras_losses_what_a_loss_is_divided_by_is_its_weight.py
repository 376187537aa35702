"""Masked tokens, sums, means by sample weights, and partial batches: weights and logs of one process."""

from keras_preamble import *

rows, length = 37, 6  # two full batches and 5 rows for one process; 19 and 18 rows for two workers
rng = np.random.RandomState(0)
# Rank 0 gets the short rows.
lengths = np.where(np.arange(rows) % 2, rng.randint(4, length + 1, rows), rng.randint(1, 3, rows))
lengths[:16:2] = 0  # and a batch of nothing else than masked tokens, beside one that has some
tokens = np.where(np.arange(length) < lengths[:, None], rng.randint(1, 10, (rows, length)), 0)
labels = rng.randint(0, 5, (rows, length, 1))
weights = rng.uniform(0.1, 3, rows).astype("float32") * np.where(np.arange(rows) % 2, 5, 1)
every_token = weights[:, None] * rng.uniform(0.5, 1, (rows, length)).astype("float32")


def build(optimizer, loss):
    np.random.seed(5)
    if not KERAS_2:
        keras.utils.set_random_seed(5)
    start = L.Input((length,), dtype="int32")
    hidden = L.Embedding(10, 4, mask_zero=True)(start)
    regularizer = None if getattr(loss, "reduction", "") == "sum" else keras.regularizers.l2(0.01)
    out = L.Dense(5, activation="softmax", kernel_regularizer=regularizer)(hidden)
    model = keras.models.Model(start, out)
    model.compile(optimizer, loss=loss)
    return model


Loss = keras.losses.SparseCategoricalCrossentropy
losses = {"mask": (Loss(), KERAS_2), "sum": (Loss(reduction="sum"), False)}
if not KERAS_2:
    losses["mean by weights"] = Loss(reduction="mean_with_sample_weight"), True
    losses["ignored class"] = Loss(ignore_class=3), False
for name, (loss, weighted) in losses.items():
    data = (tokens, labels, weights if KERAS_2 else every_token) if weighted else (tokens, labels)
    rate = 0.02 if name == "sum" else 1.0
    options = {"epochs": 2, "shuffle": False, "verbose": 0}

    def fit(model, data, batch, callbacks):
        x, y, *weights = data
        rows = {"sample_weight": weights[0] if weights else None, "validation_data": data}
        return model.fit(x, y, batch, callbacks=callbacks, **rows, **options).history

    alone = build(keras.optimizers.SGD(rate, momentum=0.5), loss)
    start = flat(alone.get_weights())
    expected = fit(alone, data, 16, [])
    model = build(DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.5)), loss)
    got = fit(model, shard(*data), 8, distribute())
    difference = abs(flat(alone.get_weights()) - flat(model.get_weights())).max()
    moved = abs(flat(alone.get_weights()) - start).max()
    assert moved > 0.01, (name, moved)
    assert difference < 1e-5, (name, difference, moved)
    for key in ("loss", "val_loss"):
        np.testing.assert_allclose(got[key], expected[key], rtol=2e-6, err_msg=f"{name} {key}")

    if name == "mask":  # with a rule, what is evaluated is the center
        model = build(keras.optimizers.SGD(0.0), loss)
        x, y, *weights = data
        expected = model.evaluate(x, y, 16, sample_weight=weights[0] if weights else None, verbose=0)
        got = fit(model, shard(*data), 8, distribute(rule=EASGD()))
        np.testing.assert_allclose(got["val_loss"], expected, rtol=2e-6)
