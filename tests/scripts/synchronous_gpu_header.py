import os

os.environ["THEANO_FLAGS"] += ",force_device=True,floatX=float32"
from platoon_base import connect
from platoon_base.theano_ops.base import JobOp

rank = connect().global_rank


def calls(function):
    return [type(n.op).__name__ for n in function.maker.fgraph.toposort() if isinstance(n.op, JobOp)]
