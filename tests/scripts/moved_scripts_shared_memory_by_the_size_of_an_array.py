import numpy

from by_hand_preamble import worker
from refusing import raises

rank = worker.global_rank
array = worker.shared(numpy.zeros((2, 3), dtype="float32"))
other = worker.shared(numpy.zeros((6,), dtype="float32"))  # as many bytes, and not the same memory
assert array.shape == (2, 3) and array.dtype == "float32" and (array == 0).all()
worker.handle.barrier("both")
array[rank] = rank + 1
other[rank] = 10 + rank
worker.handle.barrier("written")
numpy.testing.assert_array_equal(array, [[1] * 3, [2] * 3])
numpy.testing.assert_array_equal(other, [10, 11, 0, 0, 0, 0])
with raises(ValueError, "got NoneType to share: pass an array"):
    worker.shared(None)
