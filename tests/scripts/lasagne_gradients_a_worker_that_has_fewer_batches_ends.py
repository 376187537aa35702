from platoon_plugins.lasagne import all_reduce_grads
import lasagne
import theano
from platoon_base import connect
from platoon_base.errors import WorkerLostError

worker = connect()
s = theano.shared(1.0, name="s")
step = theano.function([], updates=lasagne.updates.sgd(all_reduce_grads(s**2, [s]), [s], 0.1))
try:
    for i in range(2 + 3 * (worker.global_rank == 0)):
        step()
except WorkerLostError as exc:
    worker.report({"steps": i, "error": str(exc)})
