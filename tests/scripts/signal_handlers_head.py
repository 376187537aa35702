# ruff: noqa: F401 - names for the scripts that import this
import os
import signal
import sys
import time
import numpy as np
from interrupting import at_instruction
from platoon_base import ASGD, connect
from platoon_base.errors import ConfigurationError, PlatoonError, WorkerLostError
from watching import exchange_pids, progress, until, waits_in

signal.alarm(120)  # a deadlock ends the worker
worker = connect()
rank = worker.global_rank
x = np.zeros(1000)
worker.init_shared_params([x], ASGD())
pids = exchange_pids(worker)
