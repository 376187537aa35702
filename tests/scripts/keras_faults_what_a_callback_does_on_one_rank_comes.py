from keras_preamble import DistributedOptimizer, Watch, data, dense, distribute, everyones, flat, keras, rank, shard

x, y = data(64)


def change(callback, epoch, logs):
    if rank == 1 and epoch == 1:
        callback.model.set_weights([w + 3 for w in callback.model.get_weights()])


watch = Watch(epoch_end=change)
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.01)))
model.fit(*shard(x, y), epochs=3, batch_size=8, verbose=0, callbacks=distribute([watch]))
everyone = everyones(flat(model.get_weights()))
assert (everyone == everyone[0]).all()
assert (everyone[0] > flat(dense().get_weights()) + 2).all()

rate = [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * (rank + 1))]
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.01)))
model.fit(*shard(x, y), epochs=2, batch_size=8, verbose=0, callbacks=distribute(rate))
everyone = everyones(flat(model.get_weights()))
assert (everyone == everyone[0]).all()
