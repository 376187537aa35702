from keras_preamble import *

x, y = data(8 * size + 3)
for metrics in ((), ("accuracy",)):
    for optimizer in ("sgd", DistributedOptimizer("sgd")):
        model = dense(optimizer=optimizer, metrics=metrics)
        model.fit(*shard(x, y), batch_size=4, verbose=0, callbacks=distribute())
        weights = np.linspace(0, 2, len(x)).astype("float32")
        for given in ((x, y), (x, y, weights)):
            if KERAS_2 and len(given) == 3:
                continue  # its loss of weighted rows is a mean of the batches' means
            one = model.evaluate(*given[:2], sample_weight=(*given, None)[2], batch_size=len(x), verbose=0)
            ours = evaluate(model, *given, batch_size=5, verbose=0)
            named = dict(zip(("y", "sample_weight"), given[1:]))
            assert evaluate(model, x=x, batch_size=5, verbose=0, **named) == ours
            assert np.shape(one) == np.shape(ours) and np.allclose(one, ours, atol=1e-5), (one, ours)
            assert (everyones(np.ravel(ours)) == np.ravel(ours)).all()
        expected = model.predict(x, verbose=0)
        assert np.allclose(predict(model, x, batch_size=3, verbose=0), expected, atol=1e-6)
        assert np.allclose(predict(model, x[:1], verbose=0), expected[:1], atol=1e-6)
if not KERAS_2:
    named = evaluate(model, x, y, verbose=0, return_dict=True)
    assert list(named) == list(model.evaluate(x, y, verbose=0, return_dict=True))
    assert abs(named["accuracy"] - ours[1]) > 0 or abs(named["loss"] - one[0]) > 0  # those without weights

    a, b = keras.Input((6,), name="a"), keras.Input((2,), name="b")
    both = L.Concatenate()([a, b])
    kinds = L.Lambda(lambda v: keras.ops.argmax(v, axis=-1), output_shape=())
    two = keras.Model({"a": a, "b": b}, {"sum": L.Dense(1, name="sum")(both), "kind": kinds(both)})
    two.set_weights([np.arange(8, dtype="float32")[:, None], np.ones(1, "float32")])
    inputs = {"a": x, "b": x[:, :2] * 2}
    one, ours = two.predict(inputs, verbose=0), predict(two, inputs, verbose=0)
    assert ours["kind"].dtype == one["kind"].dtype and (ours["kind"] == one["kind"]).all()
    assert np.allclose(one["sum"], ours["sum"], atol=1e-5)

    z = keras.Input((6,))
    several = keras.Model(z, [L.Dense(1, name="second")(z), L.Dense(1, name="first")(z)])
    several.compile("sgd", loss=["mse", "mae"], metrics=[["mae"], ["mse"]])
    several.set_weights(
        [np.linspace(i, i + 1, w.size, dtype="float32").reshape(w.shape) for i, w in enumerate(several.get_weights())]
    )
    # With TensorFlow the loss of each output is a mean of the batches' means, as in one process.
    rows = x[: 8 * size] if keras.backend.backend() == "tensorflow" else x
    targets = [rows[:, :1], rows[:, 1:2]]
    one = several.evaluate(rows, targets, batch_size=len(rows), verbose=0)
    assert np.allclose(one, evaluate(several, rows, targets, batch_size=4, verbose=0), atol=1e-5)

    tokens = np.random.RandomState(0).randint(0, 4, (4 * size, 7))  # 0 is masked
    masked = keras.Sequential([keras.Input((7,)), L.Embedding(4, 3, mask_zero=True), L.Dense(2)])
    masked.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    one = masked.evaluate(tokens, tokens % 2, batch_size=4 * size, verbose=0)
    assert abs(one - evaluate(masked, tokens, tokens % 2, batch_size=4, verbose=0)) < 1e-5


class Batches(keras.utils.Sequence if KERAS_2 else keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        return x[3 * i : 3 * i + 3], y[3 * i : 3 * i + 3]


one = model.evaluate(x[:15], y[:15], verbose=0)
assert np.allclose(one, evaluate(model, Batches(), verbose=0), atol=1e-5)
for call in (
    lambda: predict(model, Batches()),
    lambda: predict(model, x + rank),
    lambda: evaluate(model),
    lambda: evaluate(model, x, x=x),
    lambda: evaluate(model, x + rank, y),
    lambda: evaluate(model, x, y, steps=1),
):
    try:
        call()
        worker.barrier("not refused here")  # the worker that comes first is not told
    except PlatoonError as exc:
        worker.report({f"refused {rank}": str(exc)})
        worker.barrier("not refused here")
