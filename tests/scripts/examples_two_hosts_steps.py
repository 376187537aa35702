import sys
from platoon_plugins.lasagne import all_reduce_grads
import lasagne
import numpy as np
import theano
import theano.tensor as T
from platoon_base import connect

worker = connect()
rng = np.random.RandomState(0)
rows, targets = rng.randn(64, 5).astype("float32"), rng.randn(64).astype("float32")
lasagne.random.set_rng(np.random.RandomState(1))
x, y = T.matrix("x"), T.vector("y")
network = lasagne.layers.DenseLayer(lasagne.layers.InputLayer((None, 5), x), 8)
network = lasagne.layers.DenseLayer(network, 1, nonlinearity=None)
loss = T.mean((lasagne.layers.get_output(network).flatten() - y) ** 2)
params = lasagne.layers.get_all_params(network)
updates = lasagne.updates.momentum(all_reduce_grads(loss, params), params, 0.05)
step = theano.function([x, y], loss, updates=updates)
mine = slice(worker.global_rank * 64 // worker.global_size, (worker.global_rank + 1) * 64 // worker.global_size)
for _ in range(20):
    step(rows[mine], targets[mine])
np.savez(f"{sys.argv[1]}-{worker.global_rank}.npz", *lasagne.layers.get_all_param_values(network))
