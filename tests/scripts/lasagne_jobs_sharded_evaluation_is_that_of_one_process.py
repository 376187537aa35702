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
worker.report({f"one {rank}": evaluate(one, *data, batch_size=7)})
first, second = evaluate(two, *data, batch_size=200)
worker.report({f"two {rank}": first})
calls = []
counted = lambda *rows: (calls.append(len(rows[0])), one(*rows))[1]
shared = [SharedData(array) for array in data]
worker.report({f"sliced {rank}": evaluate(counted, *shared, num_slices=4)})
assert calls == [9, 9, 9, 2 if rank == 2 else 9], calls  # whole calls of a function of Python
tiny = evaluate(two, data[0][:2], data[1][:2], batch_size=1)
assert len(tiny) == 2
worker.report({f"tiny {rank}": tiny[0]})
assert (w.get_value() == np.arange(3.0) + 10 * rank).all()
