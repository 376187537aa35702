from keras_preamble import data, dense, distribute, flat, keras, np, shard, worker

model = dense(optimizer=keras.optimizers.Adam(0.01))
x, y = data(96)
valid = data(24)
fitted = model.fit(
    *shard(x, y), batch_size=8, epochs=3, verbose=0, validation_data=shard(*valid), callbacks=distribute()
)
alone = model.evaluate(*valid, verbose=0)
np.testing.assert_allclose(alone[0], fitted.history["val_loss"][-1], rtol=1e-4)
everyones = worker.gather(flat(model.get_weights()).tobytes())
assert everyones[0] == everyones[1]
