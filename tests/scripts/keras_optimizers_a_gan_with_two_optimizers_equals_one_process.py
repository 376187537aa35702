from keras_preamble import *
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
    for later in range(2):  # the second goes on
        history = fit(model, x, y, initial_epoch=2 * later, epochs=2 + later, shuffle=False).history
        ours = {name: [*values, *history[name]] for name, values in ours.items()}
    assert abs(flat(one.get_weights()) - start).max() > 0.05
    assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-4, critics
    same_everywhere(model)
    for name, values in first.items():
        assert abs(np.array(values) - ours[name]).max() < 1e-4, (name, first, ours)

    # Rank 1 has three batches, rank 0 four: the fourth is taken by rank 0 alone.
    own = slice(0, 32) if rank == 0 else slice(32, 56)
    model = made(DistributedOptimizer, critics)
    model.fit(x[own], y[own], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=distribute())
    same_everywhere(model)
    steps = everyones(np.array([int(model.g_optimizer.iterations), int(model.d_optimizer.iterations)]))
    assert (steps == [8, 8 * critics]).all(), steps
