# ruff: noqa: F401 - for the lines that tests add
import os
import signal
import sys
import time
import numpy as np
from platoon_base import connect
from platoon_base.errors import ConfigurationError, PlatoonError, WorkerLostError

worker = connect()
rank = worker.global_rank
x = np.ones(1000, "float32")
worker.all_reduce(x)
