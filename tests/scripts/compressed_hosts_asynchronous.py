import numpy as np
from hosts_preamble import say, worker

from platoon_base.errors import ConfigurationError
from platoon_base.rules import EASGD

try:
    worker.init_shared_params([np.zeros(9, "float32")], EASGD(0.5))
except ConfigurationError as exc:
    say(str(exc))
