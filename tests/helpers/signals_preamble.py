"""What the scripts of the tests of signals import; workers tell by files what they are in the middle of."""

# ruff: noqa: F401 - for the scripts
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from watching import controller_lives, ending, exchange_pids, is_stopped, progress, rest, takes_part, until, waits_in

from platoon_base import ASGD, connect
from platoon_base.errors import WorkerLostError
from platoon_base.shm.liveness import JobLiveness

FOLDER = Path(sys.argv[1])


def tell(name):
    (FOLDER / f"new {name}").write_text(str(os.getpid()))
    (FOLDER / f"new {name}").rename(FOLDER / name)
