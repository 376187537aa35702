from by_hand_preamble import Worker, worker

import warnings
from platoon_base.platoon_api.channel import Soldier

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert Worker(5567) is worker
    assert Worker(control_port=5567) is Soldier(port=5567) is Soldier(control_port=5567) is worker
print(caught[0].message)
worker.close()
try:
    worker.send_req("x")
except Exception as exc:
    print(exc)
