from keras_preamble import *

x, y = data(64)
sent = []
plain = worker.advanced.sum_arrays


def sum_arrays(name, arrays, *rest, **options):
    sent.append((name, sum(np.size(array) for array in arrays)))
    return plain(name, arrays, *rest, **options)


worker.advanced.sum_arrays = sum_arrays
layers = [L.BatchNormalization(name="bn"), L.Dense(500, trainable=False, name="frozen")]
model = dense(extra=layers, optimizer=keras.optimizers.SGD(0.1))
kernel, bias = (everyones(w)[0] for w in model.get_layer("frozen").get_weights())  # rank 0's count


def change(callback, batch):
    if rank == 1 and len(callback.epochs) == 1 and batch == 0:  # as a step that trains a second model may
        model = callback.model
        model.set_weights([w + 1 if w.shape == bias.shape else w for w in model.get_weights()])


watch = Watch(batch_end=change, epoch_end=lambda callback, epoch, logs: sent.append((epoch, 0)))
model.fit(*shard(x, y), epochs=3, batch_size=8, verbose=0, callbacks=distribute([watch], rule=EASGD()))
ends = [sent.index((epoch, 0)) for epoch in range(3)]
for first, last, most in ((0, ends[0], 100), (ends[0], ends[1], 700), (ends[1], ends[2], 100)):
    assert max(size for _, size in sent[first:last]) < most, sent[first:last]
now = model.get_layer("frozen").get_weights()
assert (now[0] == kernel).all()
np.testing.assert_allclose(now[1], bias + 0.5)
statistics = flat(model.get_layer("bn").get_weights()[2:])
assert (everyones(statistics) == statistics).all()
assert abs(statistics[:8]).max() > 0.01
