from keras_preamble import *

folder, crash = sys.argv[1], sys.argv[2:] == ["crash"]
x, y = data(64)
model = dense(optimizer=keras.optimizers.Adam(0.05))
begins = []


def fail(callback, epoch):
    begins.append((epoch, flat(callback.model.get_weights())))
    if crash and epoch == 2:
        os._exit(3)


callbacks = [keras.callbacks.BackupAndRestore(os.path.join(folder, f"backup{rank}")), Watch(epoch_begin=fail)]
model.fit(*shard(x, y), epochs=4, batch_size=8, verbose=0, callbacks=distribute(callbacks, every_n_batches=2))
first = everyones([begins[0][0], keras.ops.convert_to_numpy(model.optimizer.iterations)])
assert (first[:, 0] == 2).all(), first
assert (first[:, 1] == 16).all(), first
starts = everyones(begins[0][1])
assert (starts == starts[0]).all()
assert abs(starts[0] - flat(dense().get_weights())).max() > 0.01
