import sys
import numpy as np
from platoon_base import ASGD, connect
from platoon_base.errors import NonFiniteError

policy = sys.argv[2]
with connect() as worker:
    w = np.full((3, 4), 2.0)
    worker.init_shared_params([w], ASGD(), on_nonfinite=policy)
    if worker.global_rank == 0:
        for order in "CF":
            array = np.array(w + 1, order=order)
            array[1, 2] = np.nan
            try:
                worker.advanced.sync_arrays([array])
                assert policy != "raise"
            except NonFiniteError as error:
                assert policy == "raise" and "element 6 of parameter 0" in str(error), error
            # The values handed in have become the center's, but for the poison.
            rest = np.delete(array.ravel(), 6)
            assert (rest == (3 if order == "C" else 3 + (w[0, 0] + 1 - 3))).all(), (order, array)
            assert array[1, 2] == 2 if policy == "restore" else np.isnan(array[1, 2])
        w[:] = np.nan
        with worker.center_params():
            assert np.delete(w.ravel(), 6).tolist() == [3.0] * 11 and w[1, 2] == 2
        assert np.isnan(w).all()
        worker.copy_to_local()  # and so does the worker heal, whatever its policy
        assert np.isfinite(w).all()
        w += 1
        worker.sync_params()
    worker.barrier("synchronized")
    worker.copy_to_local()
    assert np.delete(w.ravel(), 6).tolist() == [4.0] * 11 and w[1, 2] == 3, w
