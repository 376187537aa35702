from keras_preamble import *

kinds = {
    "Muon": {"exclude_layers": ["out"], "weight_decay": 0.01},
    "Lion": {"weight_decay": 0.01, "clipnorm": 0.5},
    "Adafactor": {"relative_step": False},
}
x, y = data(8 * size * 4)
different = []
for name, options in kinds.items():
    optimizers = [getattr(keras.optimizers, name)(learning_rate=0.02, **options) for _ in range(2)]
    model = dense((8, 3), DistributedOptimizer(optimizers[0]))
    model.fit(*shard(x, y, reshuffle=False), batch_size=8, shuffle=False, verbose=0, callbacks=distribute())
    alone = dense((8, 3), optimizers[1])
    for step in range(4):  # worker i has the rows i, i + N, ...
        rows = slice(8 * size * step, 8 * size * (step + 1))
        alone.train_on_batch(x[rows], y[rows])
    found, expected = flat(model.get_weights()), flat(alone.get_weights())
    assert (everyones(found) == found).all(), name
    assert abs(found - flat(dense().get_weights())).max() > 1e-3, name  # it has moved
    if abs(found - expected).max() > 2e-5:
        different.append((name, rank, float(abs(found - expected).max())))
assert not different, different
