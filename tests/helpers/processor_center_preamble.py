"""The lines that scripts begin with whose workers have the processor as their CUDA device; see `processor_cuda`."""

# ruff: noqa: F401 - for the scripts that follow
import functools
import os
import signal
import sys
from sys import modules

import numpy as np
import pytest
import replaying
from processor_cuda import OnProcessor, use_processor
from replaying import draw, require_validated, take_turns
from watching import living, partitions_of, until

from platoon_base import ASGD, EASGD, CenterMomentum, connect, rules
from platoon_base.errors import ConfigurationError, NonFiniteError

use_processor(os.environ["LD_LIBRARY_PATH"])
worker = connect()
rank, size = worker.global_rank, worker.global_size
Replay = functools.partial(replaying.Replay, size=size)


class Variable:
    """A parameter that is changed in place, or by copies; see `platoon_base.parameters.Parameter`."""

    name = "variable"

    def __init__(self, values, dtype, order):
        self.array = np.array(values, dtype, order=order)
        self.kept = None  # the order of the center

    def borrow(self):
        return self.array.copy()

    def give_back(self, array):
        self.array[...] = np.asarray(array)

    def memory(self):
        return None

    def on_device(self):
        array = OnProcessor(self.array)
        if self.kept not in (None, array.order):
            return OnProcessor(self.array.transpose(self.kept).copy().transpose(np.argsort(self.kept)))
        return array if os.environ["VALUES"] == "in place" else OnProcessor(self.array.copy("K"))

    def keep_order(self, order):
        self.kept = order
        return order != OnProcessor(self.array).order

    def get_value(self, borrow=False):
        return self.array.copy()

    def set_value(self, values):
        self.array[...] = values


def on_device(values, dtype="float32", order="C"):
    return Variable(values, dtype, order)


def advance(variables, progress):
    for variable, add in zip(variables, progress):
        variable.array += add


def require_on_device():
    """Fail unless the center is in the memory of devices, without pygpu."""
    with pytest.raises(ConfigurationError, match="it is on devices"):
        len(worker.center_arrays)
    assert "pygpu" not in modules
