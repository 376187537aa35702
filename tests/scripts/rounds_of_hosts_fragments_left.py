"""The script copies the center over parameters that have learned more; and shares too small ones."""

import numpy as np

from platoon_base import connect
from platoon_base.errors import ConfigurationError
from platoon_base.rules import LocalSGD

with connect() as worker:
    try:
        worker.init_shared_params([np.zeros(9, "float32")], LocalSGD(fragments=4))
    except ConfigurationError as exc:
        assert "parameters of 36 bytes in all" in str(exc), exc
    else:
        raise AssertionError("not refused")
    worker.barrier("refused")
    x = np.zeros(64)
    worker.init_shared_params([x], LocalSGD(fragments=4))
    worker.barrier("all share")
    for whole in (False, True):
        x += 1
        worker.sync_params(whole=whole)
        worker.barrier(f"synchronized {whole}")
        worker.copy_to_local()
        worker.barrier(f"copied {whole}")
