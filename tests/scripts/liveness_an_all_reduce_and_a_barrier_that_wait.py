from liveness_head import rank, worker, x
from platoon_base.errors import PlatoonError

try:
    if rank == 0:
        worker.all_reduce(x)
    else:
        worker.barrier("epoch")
except PlatoonError as exc:
    if rank == 0:
        worker.report({"said": str(exc)})
