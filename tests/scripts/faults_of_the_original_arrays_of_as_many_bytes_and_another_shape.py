import numpy as np
from platoon_base import connect
from platoon_base.errors import PlatoonError

worker = connect()
shape = (2, 6) if worker.global_rank else (3, 4)
assert (worker.all_reduce(np.ones((4, 3))) == 2).all()
try:
    worker.all_reduce(np.ones(shape))
except PlatoonError as error:
    assert "(2, 6)" in str(error) or "(3, 4)" in str(error), error
else:
    raise AssertionError("combined")
