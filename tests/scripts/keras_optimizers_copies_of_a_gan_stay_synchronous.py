import os
import sys

from keras_preamble import DistributedOptimizer, EASGD, data, distribute, everyones, flat, keras, rank, shard, size

import copy
from keras_gan import Gan

x, y = data(8 * size * 4)
Adam = keras.optimizers.Adam


def made(wrap):
    model = Gan()
    model.compile(wrap(Adam(0.02)), wrap(Adam(0.01)))
    return model


def from_file(model):
    path = os.path.join(sys.argv[1], f"gan{rank}.keras")
    model.save(path)
    return keras.models.load_model(path)


one = made(lambda optimizer: optimizer)
start = flat(one.get_weights())
one.fit(x, y, batch_size=8 * size, shuffle=False, verbose=0)
assert abs(flat(one.get_weights()) - start).max() > 0.05
options = dict(batch_size=8, shuffle=False, verbose=0)
for copied, rule in ((copy.deepcopy, "auto"), (from_file, None)):
    model = copied(made(DistributedOptimizer))
    model.fit(*shard(x, y), callbacks=distribute(rule=rule), **options)
    assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-4, copied
    assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
model = copy.deepcopy(model)
for rule in (EASGD(), "auto"):  # which stays with the rule
    model.fit(*shard(x, y), callbacks=distribute(rule=rule), **options)
assert not hasattr(model.d_optimizer, "gradient_average")
