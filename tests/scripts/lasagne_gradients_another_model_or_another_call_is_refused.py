from lasagne_preamble import *

w = theano.shared(np.full((2, 3 + rank), float(rank)), name="w")
s = theano.shared(float(rank), name="s")
shapes = [f"w float64[2, {3 + each}]" for each in (rank, 1 - rank)]
with raises(LayoutMismatchError, f"got {shapes[0]} as parameter 0, and worker {1 - rank}'s is {shapes[1]}"):
    all_reduce_grads((w**2).sum(), [w])
words = [f"got all_reduce_grads(average={rank == 0}) of 0 statistics, and worker {1 - rank} has"]
with raises(LayoutMismatchError, *words):
    all_reduce_grads(s**2, [s], average=rank == 0)
assert (w.get_value() == rank).all() and s.get_value() == rank
