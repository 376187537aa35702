"""The lines that scripts begin with whose workers have variables of Keras 3 on CUDA devices."""

# ruff: noqa: F401, I001 - for the scripts that follow; platoon_plugins.keras comes before keras
import functools
import importlib
import os
import signal
import sys
import time
from sys import modules

import numpy as np
from platoon_plugins.keras import distribute
from processor_cuda import use_processor
import keras

import pytest
import replaying
from replaying import draw, require_validated, take_turns
from watching import exchange_pids, living, partitions_of, until
from platoon_base import ASGD, EASGD, CenterMomentum, connect, rules
from platoon_base.errors import ConfigurationError, NonFiniteError

worker = connect()
rank, size = worker.global_rank, worker.global_size
Replay = functools.partial(replaying.Replay, size=size)
backend = importlib.import_module(f"platoon_plugins.keras.backends.{keras.backend.backend()}").backend()

if "CENTER_ON_PROCESSOR" in os.environ:
    use_processor(os.environ["CENTER_ON_PROCESSOR"])
    arrays = importlib.import_module("platoon_base.jax_arrays")
    groups = importlib.import_module("platoon_plugins.keras.backends.jax_groups")
    importlib.import_module(type(backend).__module__).on_cuda = groups.on_cuda = arrays.JaxArray


def on_device(values, dtype="float32", order="C"):
    """Make a parameter of a variable; it has the methods of Theano's shared variables."""
    if dtype == "float64" and keras.backend.backend() == "jax":
        importlib.import_module("jax").config.update("jax_enable_x64", True)
    found = backend.variable(keras.Variable(np.asarray(values, dtype), dtype=dtype))
    if order == "F":  # the same values in other memory
        value, axes = found.variable.value, tuple(reversed(range(np.ndim(values))))
        value.data = value.data.permute(axes).contiguous().permute(axes)
    return found


def advance(variables, progress):
    for variable, add in zip(variables, progress):
        variable.variable.assign_add(keras.ops.convert_to_tensor(add))


def require_on_device():
    """Fail unless the center is in the memory of GPUs, without pygpu."""
    with pytest.raises(ConfigurationError, match="it is on devices"):
        len(worker.center_arrays)
    assert "pygpu" not in modules
