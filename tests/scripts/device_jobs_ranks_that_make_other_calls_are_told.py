from device_preamble import *
from platoon_base.errors import PlatoonError

x = on_device(np.ones(100), "float32")
worker.all_reduce(x)
try:
    if rank == 0:
        np.asarray(worker.all_reduce(x))
        worker.all_reduce(x)
    else:
        worker.barrier("elsewhere")
except PlatoonError as exc:
    if rank == 0:
        worker.report({"said": str(exc)})
