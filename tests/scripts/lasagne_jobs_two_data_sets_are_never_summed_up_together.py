import numpy as np
from platoon_plugins.lasagne import evaluate
from platoon_base import connect
from platoon_base.errors import ProtocolError

with connect() as worker:
    data = np.full(10, float(worker.global_rank))
    try:
        evaluate(lambda x, y: x.mean(), data, data, 5, worker=worker)
    except ProtocolError as exc:
        worker.report({str(worker.global_rank): str(exc)})
