"""What scripts of workers import. Importing `worker` or `rank` from here joins the job.

Workers tell the test by files what they are in the middle of.
"""

# ruff: noqa: F401, F403 - for the scripts
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from plain_variable import Variable
from refusing import raises
from watching import *

from platoon_base import ASGD, EASGD, AveragedEASGD, CenterMomentum, DiLoCo, GoSGD, LocalSGD, connect
from platoon_base.data import BatchReader, SharedData, load_ahead
from platoon_base.errors import *
from platoon_base.job.joining import files_of
from platoon_base.rules import parse_rule

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else None  # of the test
late = "PLATOON_RANK" not in os.environ


def __getattr__(name):
    if name not in ("worker", "rank"):
        raise AttributeError(name)
    return connect() if name == "worker" else connect().global_rank


def start_late(*words, **options):
    """Let another worker join late, which runs this script, too, or that of the words."""
    environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
    return subprocess.Popen([sys.executable, *(words or sys.argv)], env=environment, **options)


def join_late(*words):
    """Let another worker join late, and wait for its end."""
    assert start_late(*words).wait(60) == 0


def tell(name):
    (FOLDER / f"new {name}").write_text(str(os.getpid()))
    (FOLDER / f"new {name}").rename(FOLDER / name)
