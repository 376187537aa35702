import numpy as np

from keras_preamble import DistributedOptimizer, data, distribute, everyones, flat, keras, rank, shard, size

from keras_gan import Gan

x, y = data(8 * size * 4)
Adam = keras.optimizers.Adam


def made(wrap, critics=1):
    model = Gan(critics)
    model.compile(wrap(Adam(0.02)), wrap(Adam(0.01)))
    return model


for critics in (1, 2):
    one = made(lambda optimizer: optimizer, critics)
    start = flat(one.get_weights())
    first = one.fit(x, y, batch_size=8 * size, epochs=3, shuffle=False, verbose=0).history
    model = made(DistributedOptimizer, critics)
    if rank:
        model.set_weights([w + 1 for w in model.get_weights()])
    ours = {"d_loss": [], "g_loss": []}
    for fit in range(2):  # the second goes on
        history = model.fit(
            *shard(x, y),
            batch_size=8,
            initial_epoch=2 * fit,
            epochs=2 + fit,
            shuffle=False,
            verbose=0,
            callbacks=distribute(),
        ).history
        ours = {name: [*values, *history[name]] for name, values in ours.items()}
    assert abs(flat(one.get_weights()) - start).max() > 0.05
    assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-4, critics
    assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
    for name, values in first.items():
        assert abs(np.array(values) - ours[name]).max() < 1e-4, (name, first, ours)

    # Rank 1 has three batches, rank 0 four: the fourth is taken by rank 0 alone.
    own = slice(0, 32) if rank == 0 else slice(32, 56)
    model = made(DistributedOptimizer, critics)
    model.fit(x[own], y[own], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=distribute())
    assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
    steps = everyones(np.array([int(model.g_optimizer.iterations), int(model.d_optimizer.iterations)]))
    assert (steps == [8, 8 * critics]).all(), steps
