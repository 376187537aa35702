import numpy as np

from platoon_base import connect
from platoon_base.errors import ConfigurationError
from platoon_base.rules import GoSGD

worker = connect()
x = np.zeros(4)
try:
    worker.init_shared_params([x], GoSGD(), moments=[np.zeros(4)])
except ConfigurationError as error:
    assert "keeps separate moments on each worker" in str(error), error
else:
    raise AssertionError("moments would not be shared")
worker.init_shared_params([x], GoSGD())
for call in (lambda: worker.center_arrays, lambda: worker.update_center(lambda center: None)):
    try:
        call()
    except ConfigurationError as error:
        assert "GoSGD has no center" in str(error), error
        assert "copy_to_global" in str(error), error
    else:
        raise AssertionError("there is no center to change")
worker.barrier("refused")
if worker.global_rank == 1:
    x[:] = 3
    worker.copy_to_global()
worker.barrier("overwritten")
worker.sync_params()
assert (x == 3).all(), x
worker.barrier("synchronized")
worker.copy_to_local()
assert (x == 3).all(), x
