from keras_preamble import *

x, y = data((24, 80, 40)[rank])
model = dense(optimizer=DistributedOptimizer(keras.optimizers.Adam(0.01)))
watch = Watch()


class Weights(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.latest = flat(self.model.get_weights())


weights = Weights()
model.fit(x, y, epochs=3, batch_size=8, verbose=0, callbacks=distribute([watch, weights]))
assert watch.batches == 3 * (3, 10, 5)[rank]
ends = same_everywhere(model)
assert (ends == everyones(weights.latest)[1]).all(), "those of the worker with the most steps"
assert abs(ends - flat(dense().get_weights())).max() > 0.05
variables = (
    model.optimizer.get_weights() if KERAS_2 else [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]
)
moments = everyones(flat(variables))
assert (moments == moments[0]).all()
