from keras_preamble import DistributedOptimizer, KERAS_2, Watch, data, dense, distribute, everyones, flat, keras, rank

x, y = data((24, 80, 40)[rank])
model = dense(optimizer=DistributedOptimizer(keras.optimizers.Adam(0.01)))
watch = Watch()
model.fit(x, y, epochs=3, batch_size=8, verbose=0, callbacks=distribute([watch]))
assert watch.batches == 3 * (3, 10, 5)[rank]
everyone = everyones(flat(model.get_weights()))
assert (everyone == everyone[0]).all()
assert abs(everyone[0] - flat(dense().get_weights())).max() > 0.05
variables = (
    model.optimizer.get_weights() if KERAS_2 else [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]
)
moments = everyones(flat(variables))
assert (moments == moments[0]).all()
