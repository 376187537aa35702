"""The learning rate is 0: what both moved by before they first synchronized, each with half of the weight, stays."""

from keras_preamble import Watch, data, dense, distribute, everyones, flat, keras, rank, shard, worker

from platoon_plugins.keras import GoSGD

x, y = data(64)
start = flat(dense().get_weights())
validated = []


def begin(callback, epoch):
    if not epoch:
        callback.model.set_weights([w + rank + 1 for w in callback.model.get_weights()])


def compare(callback, epoch, logs):
    validated.append(flat(callback.model.get_weights()))


model = dense(optimizer=keras.optimizers.SGD(0.0))
history = model.fit(
    *shard(x, y),
    validation_data=shard(x, y),
    epochs=3,
    batch_size=8,
    verbose=0,
    callbacks=distribute([Watch(epoch_begin=begin, epoch_end=compare)], rule=GoSGD(probability=0.5)),
).history
ends = everyones(flat(model.get_weights()))
assert (ends[0] == ends[1]).all()
for values in (*validated, ends[0]):
    assert abs(values - start - 1.5).max() < 1e-5, abs(values - start - 1.5).max()
losses = everyones(flat([history["val_loss"]]))
assert (losses[0] == losses[1]).all()
assert max(losses[0]) - min(losses[0]) < 1e-4
assert not worker.advanced.shares
