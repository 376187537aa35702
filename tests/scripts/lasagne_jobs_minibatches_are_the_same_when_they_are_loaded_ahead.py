"""The generator is made by the worker, whose call counts the epoch, and read by another process."""

from lasagne_preamble import *
from platoon_base.data import load_ahead

x = np.random.RandomState(0).rand(50, 3)
for epoch in range(3):
    ahead = [(a.tolist(), b.tolist()) for a, b in load_ahead(iterate_minibatches(x, x[:, 0], 8, True))]
    plain = iterate_minibatches(x, x[:, 0], 8, True, epoch=epoch)
    assert ahead == [(a.tolist(), b.tolist()) for a, b in plain]
