from lasagne_preamble import *

w = theano.shared(np.full((2, 3 + rank), float(rank)), name="w")
s = theano.shared(float(rank), name="s")
for name, call in {
    "shape": lambda: all_reduce_grads((w**2).sum(), [w]),
    "average": lambda: all_reduce_grads(s**2, [s], average=rank == 0),
}.items():
    try:
        call()
    except LayoutMismatchError as exc:
        worker.report({f"{name} {rank}": str(exc)})
assert (w.get_value() == rank).all() and s.get_value() == rank
