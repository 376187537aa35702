import numpy as np
from platoon_plugins.lasagne import EASGD, sync_updates
import theano
from platoon_base import connect
from platoon_base.errors import LayoutMismatchError

worker = connect()
if worker.global_rank == 1:
    worker.barrier("first")
w = theano.shared(np.zeros((2, 3 + worker.global_rank)), name="w")
try:
    sync_updates({w: w * 2}, [w], EASGD())
except LayoutMismatchError as exc:
    worker.report({"error": str(exc)})
else:
    worker.barrier("first")
    worker.sync_params()
worker.barrier("end")
