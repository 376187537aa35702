from theano_preamble import *

with connect() as worker:
    x = T.vector("x")
    function = theano.function([x], all_reduce(x))
    function(np.ones(3, x.dtype))
    if rank == 0:
        try:
            function(np.ones(3, x.dtype))
        except WorkerLostError as exc:
            assert "rank 1" in str(exc), exc
        else:
            raise RuntimeError("the call returned")
