from keras_preamble import *

x, y = data(64)


def change(callback, epoch, logs):
    if rank == 1 and epoch == 1:
        callback.model.set_weights([w + 3 for w in callback.model.get_weights()])


watch = Watch(epoch_end=change)
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.01)))
model.fit(*shard(x, y), epochs=3, batch_size=8, verbose=0, callbacks=distribute([watch]))
weights = same_everywhere(model)
assert (weights > flat(dense().get_weights()) + 2).all()

rate = [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * (rank + 1))]
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.01)))
model.fit(*shard(x, y), epochs=2, batch_size=8, verbose=0, callbacks=distribute(rate))
same_everywhere(model)
