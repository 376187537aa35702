import numpy as np
from platoon_base import connect
from platoon_base.errors import LayoutMismatchError

with connect() as worker:
    try:
        worker.advanced.sum_arrays("states", [np.ones((3, 30_000 if worker.global_rank else 20_000))])
    except LayoutMismatchError as exc:
        worker.report({str(worker.global_rank): str(exc)})
    assert worker.advanced.sum_arrays("states", [np.ones(3)]).arrays[0].tolist() == [3.0] * 3
