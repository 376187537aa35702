from keras_preamble import *

x, y = data(32)


def fail(callback, epoch, logs):
    raise OSError("of a callback")


model = dense()
model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute([Watch(epoch_end=fail)]))
