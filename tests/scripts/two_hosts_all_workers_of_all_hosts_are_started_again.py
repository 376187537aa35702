import numpy as np
import os
import sys

from hosts_preamble import rank, say, worker
from platoon_base.errors import PlatoonError

mark = os.path.join(sys.argv[1], "failed")
say(worker.all_reduce(np.ones(3)).tolist())
worker.progress(steps=1)
if rank == 2 and not os.path.exists(mark):
    open(mark, "w").close()
    os._exit(3)
try:
    say(worker.all_reduce(np.ones(3)).tolist())
except PlatoonError as exc:
    say(type(exc).__name__)
    raise
