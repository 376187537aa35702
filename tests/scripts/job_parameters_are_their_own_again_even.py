import numpy as np
from platoon_base import EASGD, connect
from platoon_base.errors import CollectiveTimeoutError


class Dawdler(EASGD):
    kernel = None

    def sync(self, *arrays):
        global dawdled
        if not dawdled:
            dawdled = True
            worker.barrier("held")
            worker.barrier("tried")
        super().sync(*arrays)


n, dawdled = 3_000_000, False  # several stripes
with connect() as worker:
    x = np.zeros(n, "float32")
    worker.init_shared_params([x], Dawdler(0.5))
    x[:] = 7
    worker.barrier("there")
    if worker.global_rank == 0:
        worker.sync_params()
        assert dawdled
    else:
        worker.barrier("held")
        try:
            with worker.center_params(timeout_s=0.1):
                raise AssertionError("a stripe is held by another")
        except CollectiveTimeoutError as exc:
            assert "rank 0 holds" in str(exc), exc
            assert (x == 7).all()
        worker.barrier("tried")
