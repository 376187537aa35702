from keras_preamble import *
from orbax.checkpoint import v1 as orbax

x, y = data(64)
folder = os.path.join(sys.argv[1], "checkpoints")


def push(callback, batch):
    if callback.batches in (1, 5):
        callback.model.set_weights([w + 1 + rank for w in callback.model.get_weights()])


model = dense(optimizer=keras.optimizers.SGD(0.0))
start = model.get_weights()
# Rank 1 must not come to the end of its epoch, and move the center, before rank 0 has saved it.
wait = Watch(batch_end=lambda callback, batch: batch == 3 and worker.barrier("saved by rank 0"))
own = folder if rank == 0 else folder + str(rank)
checkpoint = keras.callbacks.OrbaxCheckpoint(own, save_freq=3, save_weights_only=True)
callbacks = distribute([Watch(batch_end=push), checkpoint, wait], every_n_batches=100)
model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=callbacks)
if rank == 0:
    assert os.listdir(folder) == ["3"]
    saved = orbax.load_checkpointables(os.path.join(folder, "3"))["pytree"]["trainable_variables"]
    leaves = keras.tree.flatten(saved)
    for value in start:
        assert any(np.shape(leaf) == value.shape and (np.asarray(leaf) == value).all() for leaf in leaves)
else:
    assert not os.listdir(own)
