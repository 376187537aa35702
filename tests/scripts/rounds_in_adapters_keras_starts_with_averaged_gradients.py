from keras_preamble import Watch, data, dense, distribute, everyones, flat, keras, shard, size

from platoon_plugins.keras import DiLoCo, DistributedOptimizer

x, y = data(12 * size * 8)
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.2)))
model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
averaged, begins = flat(model.get_weights()), []
watch = Watch(epoch_begin=lambda callback, epoch: begins.append(flat(callback.model.get_weights())))
model.compile(keras.optimizers.SGD(0.2), loss=model.loss)
logs = model.fit(
    *shard(x, y),
    batch_size=8,
    epochs=2,
    verbose=0,
    validation_data=shard(x, y),
    callbacks=distribute([watch], rule=DiLoCo(), every_n_batches=3),
).history
assert (begins[0] == averaged).all() and (everyones(averaged) == averaged).all()
assert abs(begins[1] - averaged).max() > 1e-3
assert logs["val_loss"][1] < logs["val_loss"][0], logs
assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
