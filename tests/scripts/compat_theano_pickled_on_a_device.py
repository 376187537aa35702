from platoon_base import compat

compat.apply()
import pickle
import numpy as np
import theano
import theano.tensor as T

x, w = T.fmatrix("x"), theano.shared(np.ones(6, "float32"))
step = theano.function([x], ((x * w) ** 2).sum(), updates=[(w, w * 2)])
assert any("Gpu" in type(node.op).__name__ for node in step.maker.fgraph.toposort())
again = pickle.loads(pickle.dumps(step))
ones = np.ones((2, 6), "float32")
assert [float(f(ones)) for f in (step, step, again, again)] == [12, 48, 12, 48]
