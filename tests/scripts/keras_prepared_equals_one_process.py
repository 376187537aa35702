"""A prepared fit with averaged gradients against one process whose batches have as many times more rows."""

from keras_preamble import *
from platoon_plugins.keras import is_main, world_size
from platoon_plugins.keras import rank as this_rank

assert (this_rank(), world_size(), is_main()) == (rank, size, rank == 0)
x, y = data(103)
weights = np.linspace(0.5, 1.5, len(x))


def trained(model, batch_size, **options):
    watch = Watch()
    result = model.fit(x, y, batch_size, epochs=3, shuffle=False, verbose=0, callbacks=[watch], **options)
    return flat(model.get_weights()), {name: values for name, values in result.history.items() if "time" not in name}


def plain(**options):
    """Train a model of one's own on this worker, as one process does."""
    return trained(dense(optimizer=keras.optimizers.SGD(0.1)), 8 * size, **options)


def prepared(before, **options):
    model = dense(optimizer=keras.optimizers.SGD(0.1))
    if before:
        loss = model.loss
        model = prepare(model, mode="sync")
        model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
    else:
        assert prepare(model, mode="sync") is model
    return trained(model, 8, **options)


WAYS = [{"validation_split": 0.2}, {"validation_data": data(31, seed=2), "sample_weight": weights}]
if not KERAS_2:
    WAYS.append({"validation_data": data(31, seed=2), "validation_steps": 2, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}})
for way in WAYS:
    expected, history = plain(**({**way, "validation_batch_size": 8} if "validation_steps" in way else way))
    for before in (False, True):
        found, logs = prepared(before, **way)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert set(logs) == set(history)
        for name, values in logs.items():
            if not (KERAS_2 and name == "loss"):  # of which Keras 2 reports a mean over batches
                np.testing.assert_allclose(values, history[name], rtol=1e-4, atol=1e-5, err_msg=name)

# A loop over train_on_batch makes the steps of one process.
alone = dense(optimizer=keras.optimizers.SGD(0.1))
together = prepare(dense(optimizer=keras.optimizers.SGD(0.1)), mode="sync")
for start in range(0, len(x), 20):
    alone.train_on_batch(x[start : start + 20], y[start : start + 20])
    together.train_on_batch(x[start : start + 20], y[start : start + 20])
np.testing.assert_allclose(flat(together.get_weights()), flat(alone.get_weights()), rtol=1e-4, atol=1e-5)
together.fit(x, y, 8, verbose=0)
together.train_on_batch(x[:20], y[:20])  # shares the weights again
assert len({value.tobytes() for value in everyones(flat(together.get_weights()))}) == 1
