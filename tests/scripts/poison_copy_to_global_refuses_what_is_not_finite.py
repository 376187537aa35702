import numpy as np
import sys

from poison_named import Variable, refusal
from platoon_base import connect, rules

with connect() as worker:
    w, b = Variable("W", np.zeros((2, 3))), Variable("b", np.zeros(4, "float32"))
    worker.init_shared_params([w, b], eval(sys.argv[2], vars(rules)), on_nonfinite="restore")
    if worker.global_rank == 0:
        for bad in (np.nan, np.inf, -np.inf):
            w.value[:], b.value[:] = 8, (8, 8, 8, bad)
            text = refusal(worker.copy_to_global)
            assert "b has a NaN or an infinity" in text, text
            assert (w.value == 8).all() and b.value[2] == 8, "its own values stay"
            with worker.center_params():
                assert (w.value == 0).all() and (b.value == 0).all()
        b.value[3] = 8
        worker.sync_params()
    worker.barrier("synchronized")
    worker.copy_to_local()
    expected = 4 if "EASGD" in sys.argv[2] else 8
    assert (w.value == expected).all() and (b.value == expected).all(), (w.value, b.value)
