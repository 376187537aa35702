# ruff: noqa: F401 - for the lines that tests add
import os
import signal
import sys
import numpy as np
from platoon_base import connect
from platoon_base.data import SharedData
from platoon_base.errors import BackendUnavailableError
from platoon_base.job.joining import files_of
from watching import await_file
from pathlib import Path

folder = Path(sys.argv[1])
worker = connect()
rank = worker.global_rank
rows = np.random.default_rng(0).normal(size=(1000, 33)).astype(np.float32)


def names():
    return sorted(name for name in os.listdir("/dev/shm") if files_of(worker).job in name and "-data-" in name)
