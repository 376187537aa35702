import numpy as np

from function_gpu_header import rank, theano, worker

from platoon_base.platoon_api.channel import Worker
from platoon_base.platoon_api.param_sync import EASGD

old = Worker(control_port=5567)
param = theano.shared(np.full((2, 3), 8 * rank, "f4"), "p")
array = param.get_value(borrow=True, return_internal_type=True)
common = old.shared(array)
assert isinstance(common, np.ndarray) and common.shape == (2, 3) and common.dtype == "f4" and not common.any()
worker.barrier("made")
common[rank] = rank + 1
worker.barrier("written")
assert (common == [[1] * 3, [2] * 3]).all()
for op, expected in {"+": 8, "max": 8, "min": 0, "*": 0}.items():
    found = old.all_reduce(array, op)
    assert type(found) is type(array) and (np.asarray(found) == expected).all(), op
old.init_shared_params([param], EASGD(0.25))
start = param.get_value()
assert (start == start[0, 0]).all() and start[0, 0] in (0, 8)  # those of the worker that came first
worker.barrier("shared")
if rank == 1:
    param.set_value(start + 4)
    old.sync_params()  # 0.25 * 4 go to the center
    assert (param.get_value() == start + 3).all()
worker.barrier("synchronized")
old.copy_to_local()
assert (param.get_value() == start + 1).all()
worker.barrier("end")
