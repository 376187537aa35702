from platoon_base import connect
from platoon_base.errors import ProtocolError

with connect() as worker:
    try:
        worker.barrier("this" if worker.global_rank else "that")
    except ProtocolError as exc:
        worker.report({str(worker.global_rank): str(exc)})
