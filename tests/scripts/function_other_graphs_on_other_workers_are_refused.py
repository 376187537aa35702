import numpy as np

from function_preamble import function, ours, rank, theano
from platoon_base.errors import LayoutMismatchError

other = theano.shared(np.zeros(4 + rank, "f4"), "other")
try:
    function([ours.x], ours.x.sum() + other.sum())
except LayoutMismatchError as exc:
    print("refused:", exc)
