from theano_preamble import *

x = T.fvector("x")
loaded = pickle.loads(pickle.dumps(theano.function([x], all_reduce(x + 1, x * 2)[:])))
for _ in range(3):
    summed, doubled = loaded([rank])
    assert summed == [3] and doubled == [2], (summed, doubled)
