from keras_preamble import *

x, y = data(32)
ask = lambda callback, epoch, logs: epoch == 1 and rank == 1 and worker.request_stop("enough")
watch = Watch(epoch_end=ask)
dense().fit(*shard(x, y), epochs=5, batch_size=8, verbose=0, callbacks=distribute([watch], policy="leader"))
assert watch.epochs == [0, 1], watch.epochs
