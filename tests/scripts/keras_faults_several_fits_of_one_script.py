from keras_preamble import *

x, y = data(64)
model = dense(optimizer=keras.optimizers.SGD(0.2))
watch = Watch(epoch_end=lambda callback, epoch, logs: stop(callback))
model.fit(*shard(x, y), epochs=5, batch_size=8, verbose=0, callbacks=distribute([watch]))
assert watch.epochs == [0]
model.get_layer("hidden").trainable = False
model.compile("sgd", loss="categorical_crossentropy", metrics=["accuracy"])
before = model.get_weights()
watch = Watch()
model.fit(*shard(x, y), epochs=2, batch_size=8, verbose=0, callbacks=distribute([watch], rule=ASGD()))
assert watch.epochs == [0, 1]
after = model.get_weights()
assert (before[0] == after[0]).all()
assert (before[2] != after[2]).any()


class Mine(Exception):
    pass


def fail(callback, batch):
    if callback.batches == 3:
        raise Mine


for fold in range(2):
    other = dense(units=(5 + fold, 3))
    with raises(Mine):
        other.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute([Watch(batch_end=fail)]))
last = dense(units=(4, 3), optimizer=DistributedOptimizer("sgd"))
last.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
same_everywhere(last)
