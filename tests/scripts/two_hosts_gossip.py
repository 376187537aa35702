import numpy as np

from platoon_base import connect
from platoon_base.errors import ConfigurationError
from platoon_base.rules import GoSGD

worker = connect()
try:
    worker.init_shared_params([np.zeros(4)], GoSGD())
except ConfigurationError as error:
    assert "in a job on several hosts: gossip passes through the memory of one host" in str(error), error
else:
    raise AssertionError("nothing would be sent to the other host")
