import numpy as np
from platoon_base import connect
from platoon_base.data import load_ahead
from platoon_plugins.lasagne import iterate_minibatches

worker = connect()
x = np.random.RandomState(0).rand(50, 3)
for epoch in range(3):
    ahead = [(a.tolist(), b.tolist()) for a, b in load_ahead(iterate_minibatches(x, x[:, 0], 8, True))]
    plain = iterate_minibatches(x, x[:, 0], 8, True, epoch=epoch)
    assert ahead == [(a.tolist(), b.tolist()) for a, b in plain]
