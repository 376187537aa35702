import numpy as np

from hosts_preamble import rank, say, worker
from platoon_base.errors import PlatoonError
from platoon_base.rules import LocalSGD

x = np.full(10, float(rank), "float32")
worker.init_shared_params([x], LocalSGD())
try:
    worker.update_center(lambda center: say("called"))
except PlatoonError as exc:
    say(str(exc))
worker.barrier("end")
