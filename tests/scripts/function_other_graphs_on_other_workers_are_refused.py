from function_preamble import LayoutMismatchError, function, np, ours, rank, theano

other = theano.shared(np.zeros(4 + rank, "f4"), "other")
try:
    function([ours.x], ours.x.sum() + other.sum())
except LayoutMismatchError as exc:
    print("refused:", exc)
