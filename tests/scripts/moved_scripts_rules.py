import os

import numpy
from by_hand_preamble import EASGD, ParamSyncRule, worker
import theano
from theano import tensor


class ByHand(ParamSyncRule):
    def __init__(self, alpha):
        self.alpha = alpha

    def update_params(self, local_values, master_values):
        for local, master in zip(local_values, master_values):
            diff = self.alpha * (local - master)
            local -= diff
            master += diff


class ByTheano(ByHand):
    def theano_update(self, local_params):
        masters = [tensor.TensorType(p.dtype, p.broadcastable)() for p in local_params]
        diffs = [theano.shared(self.alpha) * (p - m) for p, m in zip(local_params, masters)]
        new = [tensor.cast(m + d, m.dtype) for m, d in zip(masters, diffs)]
        updates = [(p, tensor.cast(p - d, p.dtype)) for p, d in zip(local_params, diffs)]
        return theano.function(masters, new, updates=updates)


params = [theano.shared(numpy.full((2, 3), 8.0, dtype="float32")), theano.shared(numpy.array(4.0))]
rule = {"hand": ByHand, "theano": ByTheano, "built-in": EASGD}[os.environ["KIND"]](0.25)
worker.init_shared_params(params, rule)
assert params[0].get_value().max() == 0  # the first worker's
worker.handle.barrier("both here")
for p in params:
    p.set_value(p.get_value() + 8)
x, c = 8.0, 0.0
for i in range(4):
    worker.sync_params(synchronous=i % 2 == 0)
    x, c = x - 0.25 * (x - c), c + 0.25 * (x - c)
    for p, shared in zip(params, worker.shared_params):
        assert p.get_value().shape == shared.shape and p.dtype == shared.dtype
        numpy.testing.assert_array_equal(p.get_value(), x)
        numpy.testing.assert_array_equal(shared, c)
params[0].set_value(numpy.ones((2, 3), dtype="float32"))
worker.copy_to_global()
assert (worker.shared_params[0] == 1).all() and worker.shared_params[1] == x
params[0].set_value(numpy.zeros((2, 3), dtype="float32"))
worker.copy_to_local()
assert (params[0].get_value() == 1).all()
print("as by hand")
