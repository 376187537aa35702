"""Weight by weight to 1e-5 after 20 steps, with clipping behind the average, and state in the optimizer."""

from keras_preamble import *

x, y = data(20 * size * 8)
optimizers = {
    "sgd": lambda: keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.05),
    "adam": lambda: keras.optimizers.Adam(0.01),
}
for name, make in optimizers.items():
    alone = dense(optimizer=make())
    alone.fit(x, y, batch_size=8 * size, shuffle=False, verbose=0)
    model = dense(optimizer=DistributedOptimizer(make()))
    if rank:
        model.set_weights([w + 1 for w in model.get_weights()])  # rank 0's count
    model.fit(*shard(x, y), batch_size=8, shuffle=False, verbose=0, callbacks=distribute())
    moved = abs(flat(alone.get_weights()) - flat(dense().get_weights())).max()
    difference = abs(flat(alone.get_weights()) - flat(model.get_weights())).max()
    assert moved > 0.02, moved
    assert difference < 1e-5, (name, difference)
    same_everywhere(model)
    steps = model.optimizer.iterations
    assert int(keras.backend.get_value(steps) if KERAS_2 else keras.ops.convert_to_numpy(steps)) == 20
