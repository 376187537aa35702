"""Theano Ops for collective calls inside compiled functions, and their graph optimizations."""

import sys
from typing import TYPE_CHECKING

import platoon_base.theano_ops.optimizations
import platoon_base.theano_ops.sync
from platoon_base.system.imports import lazy_names
from platoon_base.theano_ops.reductions import AllReduce, all_reduce
from platoon_base.theano_ops.sync import Sync, Synchronizer

if TYPE_CHECKING:
    from platoon_base.theano_ops.for_workers import (
        VariableWarmup,
        decay_as_one_process,
        decay_defaults,
        decay_of,
        scale_learning_rate,
        vary_noise,
        vary_noise_once,
    )
    from platoon_base.theano_ops.function_call import Function, function, scatter
    from platoon_base.theano_ops.reduction import UNSURE, add_up_sums, reduction_of

# Theano loads its GPU back end only if a device is configured; otherwise no value moves to a GPU.
if getattr(sys.modules.get("theano.gpuarray"), "pygpu_activated", False):
    import platoon_base.theano_ops.gpu  # noqa: F401

__all__ = [
    "UNSURE",
    "AllReduce",
    "Function",
    "Sync",
    "Synchronizer",
    "VariableWarmup",
    "add_up_sums",
    "all_reduce",
    "count_single_worker",
    "decay_as_one_process",
    "decay_defaults",
    "decay_of",
    "function",
    "reduction_of",
    "scale_learning_rate",
    "scatter",
    "vary_noise",
    "vary_noise_once",
]

__getattr__ = lazy_names(
    __name__,
    {
        "platoon_base.theano_ops.for_workers": "VariableWarmup decay_as_one_process decay_defaults decay_of "
        "scale_learning_rate vary_noise vary_noise_once",
        "platoon_base.theano_ops.function_call": "Function function scatter",
        "platoon_base.theano_ops.reduction": "UNSURE add_up_sums reduction_of",
        "platoon_base.theano_ops.sync": "count_single_worker",
    },
)
