import sys
import numpy as np
from pathlib import Path
from platoon_base import EASGD, connect
from watching import until

worker = connect()
until(lambda: any(Path(sys.argv[1]).glob("checkpoint-*.npz")))
worker.init_shared_params([np.random.standard_normal(1_000_000)], EASGD())
until(lambda: worker.should_stop)
