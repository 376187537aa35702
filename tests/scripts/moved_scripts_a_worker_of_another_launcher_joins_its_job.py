import numpy
from platoon_base import connect
from platoon_base.platoon_api.channel import Worker
from platoon_base.platoon_api.param_sync import EASGD

worker = Worker(control_port=5567)
assert worker.handle is connect() and worker.global_size == 2
worker.init_shared_params([numpy.zeros(3)], EASGD(0.5))
worker.sync_params()
try:
    worker.send_req("next")
except Exception as exc:
    worker.handle.report({f"error {worker.global_rank}": str(exc)})
