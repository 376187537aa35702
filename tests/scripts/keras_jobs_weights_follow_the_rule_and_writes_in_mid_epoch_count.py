"""EASGD keeps the sum of all weights and the center; callbacks move the weights of each worker otherwise."""

from keras_preamble import *

x, y = data(64)
start = flat(dense().get_weights())


def push(callback, batch):
    if callback.batches == 2:
        callback.model.set_weights([w + rank + 1 for w in callback.model.get_weights()])


def compare(callback, epoch):
    if epoch:
        worker.barrier("before")
        own = flat(callback.model.get_weights())
        with worker.center_params():
            center = flat(callback.model.get_weights())
        worker.barrier("after")
        total = everyones(own).sum(axis=0) + center
        assert abs(total - (size + 1) * start - 3).max() < 1e-4, abs(total - (size + 1) * start).max()
        # One worker may happen to be where the center is. Not both: whatever the order, the weights of rank 1
        # stay 0.3 and more above the center, and a worker that takes the center over has no distance to it.
        assert abs(everyones(own) - center).max() > 0.3


model = dense(optimizer=keras.optimizers.SGD(0.0))
watch = Watch(batch_end=push, epoch_begin=compare)
fit(model, x, y, callbacks=[watch], rule=EASGD(0.05), every_n_batches=1, epochs=3)
assert (same_everywhere(model) > start + 0.2).all()
