import sys
from pathlib import Path
import numpy as np
from platoon_base import ASGD, connect
from platoon_base.errors import CollectiveTimeoutError

fifo, x = Path(sys.argv[1], "fifo"), np.zeros(10)
with connect() as worker:
    worker.init_shared_params([x], ASGD())
    if worker.global_rank == 0:
        try:
            worker.release_shared_params(timeout_s=0.2)
        except CollectiveTimeoutError as exc:
            assert "rank 1" in str(exc) and "release_shared_params" in str(exc), exc
        else:
            raise AssertionError("the other still shares")
        x += 1
        worker.sync_params()
        fifo.write_text("go on")
    else:
        fifo.read_text()
        worker.copy_to_local()
        assert (x == 1).all()
    worker.release_shared_params()
