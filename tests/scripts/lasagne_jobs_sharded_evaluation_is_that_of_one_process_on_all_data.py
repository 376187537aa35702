"""Shards of unequal size, batches that do not divide them, and parameters that differ from the center's."""

from lasagne_preamble import *
from platoon_base.data import SharedData

w = theano.shared(np.arange(3.0), name="w")
worker.init_shared_params([w], EASGD())
w.set_value(w.get_value() + 10 * rank)
x, y = T.dmatrix("x"), T.dvector("y")
error = T.sqr(T.dot(x, w) - y)
one, two = theano.function([x, y], error.mean()), theano.function([x, y], [error.mean(), error.max()])
rng = np.random.RandomState(0)
data = rng.randn(101, 3), rng.randn(101)
errors = (data[0].dot(np.arange(3.0)) - data[1]) ** 2  # of the center
found = [evaluate(one, *data, batch_size=7), evaluate(two, *data, batch_size=200)[0]]
calls = []
counted = lambda *rows: (calls.append(len(rows[0])), one(*rows))[1]
shared = [SharedData(array) for array in data]
found.append(evaluate(counted, *shared, num_slices=4))
np.testing.assert_allclose(found, errors.mean(), rtol=1e-6)
assert calls == [9, 9, 9, 2 if rank == 2 else 9], calls  # whole calls of a function of Python
tiny = evaluate(two, data[0][:2], data[1][:2], batch_size=1)
assert len(tiny) == 2
np.testing.assert_allclose(tiny[0], errors[:2].mean(), rtol=1e-6)
assert (w.get_value() == np.arange(3.0) + 10 * rank).all()
