from keras_preamble import Watch, data, dense, distribute, shard, stop

from platoon_plugins.keras import EASGD

watch = Watch(batch_end=lambda callback, batch: batch == 1 and stop(callback))
dense().fit(
    *shard(*data(320)),
    batch_size=8,
    epochs=2,
    verbose=0,
    callbacks=distribute([watch], rule=EASGD(), every_n_batches=8),
)
assert watch.batches < 8
