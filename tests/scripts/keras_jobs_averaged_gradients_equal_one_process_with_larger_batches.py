"""Weight by weight to 1e-5 after 20 steps, with clipping behind the average, and state in the optimizer."""

from keras_preamble import *

x, y = data(20 * size * 8)
for make in (
    lambda: keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.05),
    lambda: keras.optimizers.Adam(0.01),
):
    model = require_one_process(lambda wrap: dense(optimizer=wrap(make())), x, y, elsewhere=True)
    steps = model.optimizer.iterations
    assert int(keras.backend.get_value(steps) if KERAS_2 else keras.ops.convert_to_numpy(steps)) == 20
