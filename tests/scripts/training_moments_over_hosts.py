import numpy as np

from platoon_base import EASGD, connect
from platoon_base.errors import ConfigurationError

worker = connect()
try:
    worker.init_shared_params([np.zeros(3, "f4")], EASGD(moments=True), moments=[np.zeros(3, "f4")])
except ConfigurationError as exc:
    assert "second moments would become negative; use LocalSGD(moments=True)" in str(exc), exc
else:
    raise AssertionError("couriers would move moments below zero")
