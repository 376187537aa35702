"""Theano on a device, and workers whose all-reduces are noted; Theano's device is fixed when it is imported."""
# ruff: noqa: F401 - names for the scripts that import this

import os
import sys

device = sys.argv[2:] != ["host"]
os.environ["THEANO_FLAGS"] += ",force_device=True,floatX=float32" if device else ",floatX=float32"
import own_pocl_cache
import numpy as np
import theano
import theano.tensor as T
from theano.gpuarray.basic_ops import GpuFromHost, HostFromGpu
from platoon_base import EASGD, connect
from platoon_base.theano_ops import AllReduce, Sync, Synchronizer, all_reduce
from platoon_base.theano_ops.base import JobOp
from platoon_base.theano_ops.gpu import GpuAllReduce, GpuSync
from platoon_base.worker import Fit

worker = connect()
rank = worker.global_rank
seen = []
of_worker = worker.all_reduce


def spy(array, op="sum", dest=None):
    seen.append((op, type(array).__name__, array.size))
    return of_worker(array, op, dest)


worker.all_reduce = spy


def nodes(function, *ops):
    return [n for n in function.maker.fgraph.toposort() if isinstance(n.op, ops or JobOp)]


def transfers(function):
    return len(nodes(function, GpuFromHost)), len(nodes(function, HostFromGpu))
