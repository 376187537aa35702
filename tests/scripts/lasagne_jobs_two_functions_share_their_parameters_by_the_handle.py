"""What the error of a second sync_updates advises, for a GAN: each worker's steps reach the other."""

from lasagne_preamble import *

first, second = (theano.shared(np.zeros(3), name=name) for name in ("generator", "critic"))
train = [theano.function([], updates={p: p + 2.0**rank}) for p in (first, second)]
worker.init_shared_params([first, second], ASGD())
for step in range(4):
    for function in train:
        function()
    if step % 2:
        worker.sync_params()
worker.barrier("done")
worker.copy_to_local()
assert (first.get_value() == 12).all() and (second.get_value() == 12).all()
