"""Theano Ops by which workers meet inside the compiled function, and the graph optimizations that go with them."""

import sys

import platoon_base.theano_ops.inplace
import platoon_base.theano_ops.order
from platoon_base.theano_ops.reductions import (
    AllReduceMax,
    AllReduceMean,
    AllReduceMin,
    AllReduceProd,
    AllReduceSum,
    all_reduce,
)
from platoon_base.theano_ops.sync import Sync, Synchronizer

# Theano loads its GPU back end if it was told of a device; without one there is nothing to move there.
if getattr(sys.modules.get("theano.gpuarray"), "pygpu_activated", False):
    import platoon_base.theano_ops.gpu  # noqa: F401

__all__ = [
    "AllReduceMax",
    "AllReduceMean",
    "AllReduceMin",
    "AllReduceProd",
    "AllReduceSum",
    "Sync",
    "Synchronizer",
    "all_reduce",
]
