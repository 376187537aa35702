from keras_preamble import *

x, y = data(60)
failed = os.path.join(sys.argv[1], "failed")


def die(callback, epoch):
    if epoch == 3 and rank == 1 and not os.path.exists(failed):
        open(failed, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


at_begin = []
watch = Watch(epoch_begin=lambda callback, epoch: (at_begin.append(flat(model.get_weights())), die(callback, epoch)))
model = dense(optimizer=keras.optimizers.SGD(0.2))
model.fit(*shard(x, y), epochs=5, batch_size=5, verbose=0, callbacks=distribute([watch], every_n_batches=1))
new = bool((at_begin[0] == flat(dense().get_weights())).all())
worker.report({f"epochs {rank}": str(watch.epochs), f"new {rank}": int(new)})
