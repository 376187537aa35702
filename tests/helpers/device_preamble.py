"""The lines that scripts of workers on devices begin with."""

import functools
import os
import signal  # noqa: F401
import sys  # noqa: F401
import time  # noqa: F401

import numpy as np
import own_pocl_cache  # noqa: F401
import pygpu
import replaying
from pygpu import gpuarray
from replaying import draw  # noqa: F401
from watching import living, partitions_of, until  # noqa: F401

from platoon_base import ASGD, EASGD, CenterMomentum, connect, rules  # noqa: F401
from platoon_base.errors import *  # noqa: F403

context = pygpu.init(os.environ["PLATOON_DEVICE"])
worker = connect()
rank, size = worker.global_rank, worker.global_size
Replay = functools.partial(replaying.Replay, size=size)


def on_device(values, dtype=None):
    return gpuarray.array(np.asarray(values, dtype=dtype), context=context)
