from keras_preamble import *

x, y = data(60)


def die(callback, batch):
    if rank == 1 and callback.batches == 6:
        os.kill(os.getpid(), signal.SIGKILL)


watch = Watch(batch_end=die)
model = dense(optimizer=keras.optimizers.SGD(0.2))
fit(model, x, y, callbacks=[watch], valid=(x, y), every_n_batches=1, epochs=4, batch_size=5)
norm = float(abs(flat(model.get_weights())).sum())
again = dense(optimizer=keras.optimizers.SGD(0.2))
if rank:
    again.set_weights([w + 1 for w in again.get_weights()])
at_begin = []
watch_again = Watch(epoch_begin=lambda callback, epoch: at_begin.append(flat(again.get_weights())))
again.fit(*shard(x, y), batch_size=5, verbose=0, callbacks=distribute([watch_again]))
assert (at_begin[0] == flat(dense().get_weights())).all()
worker.report(
    {f"epochs {rank}": len(watch.epochs), f"weights {rank}": norm, f"val_loss {rank}": watch.logs[-1]["val_loss"]}
)
