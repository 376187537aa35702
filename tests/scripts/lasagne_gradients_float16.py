import sys
import numpy as np
from float16_gradients import gradients
from platoon_plugins.lasagne import all_reduce_grads
import lasagne
import theano
import theano.tensor as T
from platoon_base import connect

worker = connect()
rank, size = worker.global_rank, worker.global_size
params = [theano.shared(np.zeros((2, 70), "f4"), name="W"), theano.shared(np.float32(0), name="b")]
inputs = [T.fmatrix(), T.fscalar()]
for average in (True, False):
    averaged = all_reduce_grads(inputs, params, average=average, wire_dtype="float16")
    assert [g.type for g in averaged] == [p.type for p in params]
    sent = theano.function(inputs, averaged, updates=lasagne.updates.sgd(averaged, params, 0.1))
    first, *others = [[g.astype("f8") for g in sent(*gradients(rank, step))] for step in range(200)]
    total = [f + sum(rest) for f, *rest in zip(first, *others)]
    np.savez(f"{sys.argv[1]}/{rank} {average}.npz", *total, *first)
