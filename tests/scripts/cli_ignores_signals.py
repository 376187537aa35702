import signal
import sys
import time
import numpy as np
from platoon_base import EASGD, connect

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = connect()
worker.init_shared_params([np.zeros(1000)], EASGD())
worker.barrier()
open(f"{sys.argv[1]}{worker.global_rank}", "w").close()
time.sleep(600)
