import numpy as np

from device_preamble import EASGD, on_device, rank, worker
from platoon_base.errors import NonFiniteError

a, b = on_device(np.zeros(50_000), "float32"), on_device(np.zeros((10, 10)), "float32")
worker.init_shared_params([a, b], EASGD(0.5))
worker.barrier()
if rank == 1:
    values = np.ones((10, 10), "float32")
    values[3, 4] = np.nan
    b[...] = values
    worker.sync_params()
    np.asarray(b)
    try:
        worker.sync_params()
    except NonFiniteError as exc:
        assert "element 34 of parameter 1" in str(exc), exc
    else:
        raise AssertionError("not told")
worker.barrier()
with worker.center_params():
    values = np.asarray(b)
    assert np.isfinite(values).all() and values[3, 4] == 0 and values[0, 0] > 0
worker.barrier()
