import numpy as np
import theano
import theano.tensor as T
from platoon_base import connect
from platoon_base.errors import WorkerLostError
from platoon_base.theano_ops import all_reduce

with connect() as worker:
    x = T.vector("x")
    function = theano.function([x], all_reduce(x))
    function(np.ones(3, x.dtype))
    if worker.global_rank == 0:
        try:
            function(np.ones(3, x.dtype))
        except WorkerLostError as exc:
            assert "rank 1" in str(exc), exc
        else:
            raise RuntimeError("the call returned")
