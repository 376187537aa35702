from keras_preamble import *

x, y = data(64)
path = os.path.join(sys.argv[1], "b{batch}.weights.h5")


def push(callback, batch):
    if callback.batches == 1:
        callback.model.set_weights([w + 1 + rank for w in callback.model.get_weights()])


model = dense(optimizer=keras.optimizers.SGD(0.0))
start = flat(model.get_weights())
# Rank 1 must not come to the end of its epoch, and move the center, before rank 0 has saved it.
wait = Watch(batch_end=lambda callback, batch: batch == 3 and worker.barrier("saved by rank 0"))
checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=3)
callbacks = [Watch(batch_end=push), checkpoint, wait]
model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(callbacks, every_n_batches=100))
worker.barrier("saved")
if rank == 0:
    (name,) = [name for name in os.listdir(sys.argv[1]) if name.endswith(".h5")]
    other = dense()
    other.load_weights(os.path.join(sys.argv[1], name))
    assert (flat(other.get_weights()) == start).all()
