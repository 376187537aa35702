"""What the scripts of jobs on several hosts import: the worker, and a way to report to the test."""

# ruff: noqa: F401 - for the scripts
import json
import os
import signal
import socket
import sys
import time

import numpy as np

from platoon_base import connect
from platoon_base.errors import PlatoonError

worker = connect()
rank, size = worker.global_rank, worker.global_size


def say(*values):
    """Write a line that the test reads by `said`."""
    print(json.dumps(values), flush=True)
