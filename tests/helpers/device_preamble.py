"""The lines that scripts of workers on devices begin with."""

import os
import signal  # noqa: F401
import sys  # noqa: F401
import time  # noqa: F401

import numpy as np
import own_pocl_cache  # noqa: F401
import pygpu
from pygpu import gpuarray
from watching import living, partitions_of, until  # noqa: F401

from platoon_base import ASGD, EASGD, CenterMomentum, connect  # noqa: F401
from platoon_base.errors import *  # noqa: F403
from platoon_base.rules.center import local_sources

context = pygpu.init(os.environ["PLATOON_DEVICE"])
worker = connect()
rank, size = worker.global_rank, worker.global_size


def on_device(values, dtype=None):
    return gpuarray.array(np.asarray(values, dtype=dtype), context=context)


def draw(seed, shapes=((3, 5), (100_003,), (7,), (256, 300)), dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


class Replay:
    """The center and all workers in NumPy; they synchronize one after the other.

    Attributes
    ----------
    center, states : list of ndarray, list of list of ndarray
    locals, own : list of list of ndarray, list of list of list of ndarray
        Of each worker: its values, and its own states.
    """

    def __init__(self, rule, starts):
        self.rule = rule
        self.center = [a.copy() for a in starts]
        self.states = [[np.zeros_like(a) for a in starts] for _ in rule.center_state]
        self.locals, self.own = [None] * size, [None] * size
        for turn in range(size):
            self.take_over(turn)

    def take_over(self, turn):
        """A worker goes on with the center's values."""
        self.locals[turn] = [c.copy() for c in self.center]
        starts = [self.center if source is None else self.states[source] for source in local_sources(self.rule)]
        self.own[turn] = [[a.copy() for a in start] for start in starts]

    def overwrite(self, turn, values):
        """A worker puts values into the center; momentum, which no worker follows, ends where they are others."""
        followed = local_sources(self.rule)
        for i, state in enumerate(self.states):
            for m, c, value in zip(state, self.center, values):
                if i not in followed:
                    m[c != value] = 0
        self.center = [value.copy() for value in values]
        self.take_over(turn)

    def sync(self, turn, progress, among=size):
        """A worker makes some progress, and synchronizes."""
        rule = self.rule.resolved(max(2, among))  # as many as rules reckon with at least
        for i, add in enumerate(progress):
            x = self.locals[turn][i]
            x += add
            own, states = ([state[i] for state in those] for those in (self.own[turn], self.states))
            rule.sync(x, self.center[i], tuple(own), tuple(states))
