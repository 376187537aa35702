import numpy as np
from platoon_base import connect
from platoon_base.collectives.host import HostCollective
from platoon_base.errors import PlatoonError


def fail(*args, **kwargs):
    raise OSError("no room")


HostCollective.create = fail
with connect() as worker:
    try:
        worker.all_reduce(np.ones(3))
    except (PlatoonError, OSError) as exc:
        worker.report({f"rank {worker.global_rank}": str(exc)})
    worker.barrier()
