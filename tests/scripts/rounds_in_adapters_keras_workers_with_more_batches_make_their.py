from keras_preamble import Watch, data, dense, distribute, everyones, flat, keras, rank, sys, worker
from platoon_plugins.keras import DiLoCo

RULES = {"": DiLoCo(), "overlap": DiLoCo(overlap=0.3)}

x, y = data((40, 56)[rank], seed=rank)
begins = []
watch = Watch(epoch_begin=lambda callback, epoch: begins.append(flat(callback.model.get_weights())))
model = dense(optimizer=keras.optimizers.SGD(0.2))
logs = model.fit(
    x,
    y,
    batch_size=8,
    epochs=4,
    verbose=0,
    validation_data=data(60, seed=7),
    callbacks=distribute([watch], rule=RULES[sys.argv[2]], every_n_batches=3),
).history
assert logs["val_loss"][-1] < 0.9 * logs["val_loss"][0], logs
for at_begin in begins[1:]:
    assert (everyones(at_begin) == at_begin).all()
assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
worker.report({f"val_loss {rank}": logs["val_loss"][-1]})
