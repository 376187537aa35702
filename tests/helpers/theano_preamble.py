"""What scripts of tests about calls inside Theano's graphs import, and the worker."""

# ruff: noqa: F401 - for the scripts that follow
import pickle

from platoon_base import compat, connect

compat.apply()

import numpy as np
import theano
import theano.tensor as T

from platoon_base.errors import WorkerLostError
from platoon_base.theano_ops import all_reduce
from platoon_base.theano_ops.base import JobOp

worker = connect()
rank = worker.global_rank
