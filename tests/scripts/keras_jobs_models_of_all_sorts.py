"""Several outputs, weights of samples, no metrics; losses and metrics stay those of all the data.

Batches are full: on TensorFlow and Keras 2 the loss of each output is Keras's own mean over batches.
"""

from keras_preamble import *

x, y = data(48)
other = x[:, :1] * 2
weights = np.linspace(0, 2, 48).astype("float32")


def build(optimizer):
    np.random.seed(5)
    if not KERAS_2:
        keras.utils.set_random_seed(5)
    start = keras.layers.Input((6,)) if KERAS_2 else keras.Input((6,))
    hidden = L.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.l2(0.01), name="h")(start)
    model = keras.models.Model(
        start, [L.Dense(3, activation="softmax", name="a")(hidden), L.Dense(1, name="b")(hidden)]
    )
    model.compile(
        optimizer, loss={"a": "categorical_crossentropy", "b": "mse"}, metrics={"a": ["accuracy"], "b": ["mae"]}
    )
    return model


for averaged in (False, True):
    sgd = keras.optimizers.SGD(0.0)
    model = build(DistributedOptimizer(sgd) if averaged else sgd)
    watch = Watch()
    mine, labels, others, scale = shard(x, y, other, weights)
    callbacks = distribute([watch])
    scales = {"a": scale, "b": scale} if KERAS_2 else [scale, scale]
    for fit in range(2):  # the same list again
        rows = mine, [labels, others]
        model.fit(*rows, sample_weight=scales, validation_data=rows, batch_size=8, verbose=0, callbacks=callbacks)
    scales = {"a": weights, "b": weights} if KERAS_2 else [weights, weights]
    one = build("sgd")
    names = one.metrics_names if KERAS_2 else None
    weighted = one.evaluate(
        x, [y, other], sample_weight=scales, batch_size=8, verbose=0, **({} if KERAS_2 else {"return_dict": True})
    )
    plain = one.evaluate(x, [y, other], batch_size=8, verbose=0, **({} if KERAS_2 else {"return_dict": True}))
    if KERAS_2:
        weighted, plain = dict(zip(names, weighted)), dict(zip(names, plain))
    assert len(watch.logs) == 2 and len(plain) >= 5
    for logs in watch.logs:
        for name, value in weighted.items():
            assert abs(logs[name] - value) < 2e-6, (name, logs[name], value)
        for name, value in plain.items():
            assert abs(logs["val_" + name] - value) < 2e-6, (name, logs["val_" + name], value)

if not KERAS_2:
    f1 = dense(metrics=[keras.metrics.F1Score()])
    f1.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
    (scores,) = f1.history.history["f1_score"]
    assert scores.shape == (3,)
    assert (everyones(scores) == scores).all()

bare = dense(metrics=())
bare.fit(*shard(x, y), epochs=2, batch_size=8, verbose=0, callbacks=distribute())
assert set(bare.history.history) == {"loss"}
