from keras_preamble import *

x, y = data(8 * size * 8)
optimizers = keras.optimizers
decay = optimizers.schedules.PolynomialDecay(0.5, decay_steps=12, end_learning_rate=0.0)
backend = keras.backend.backend()


class Own(OwnStep, keras.Sequential):
    def loss_of(self, inputs, targets):
        return keras.ops.mean(keras.ops.square(self(inputs, training=True) - targets))


def own(optimizer):
    keras.utils.set_random_seed(5)
    model = Own([keras.Input((6,)), L.Dense(8, activation="tanh"), L.Dense(3)])
    model.compile(optimizer, loss="mse")
    return model


def mixed(optimizer):
    keras.config.set_dtype_policy("mixed_float16")
    model = dense(optimizer=optimizer)
    keras.config.set_dtype_policy("float32")
    return model


sgd = lambda **options: optimizers.SGD(0.5, momentum=0.9, **options)
scaled = lambda: optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0**8)
cases = {
    "accumulation": (lambda: sgd(gradient_accumulation_steps=2), dense, {}, 1e-5),
    "average of weights": (lambda: sgd(use_ema=True, ema_momentum=0.5), dense, {}, 1e-5),
    "overwriting": (lambda: sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3), dense, {}, 1e-5),
    "weight decay": (lambda: optimizers.AdamW(0.01, weight_decay=0.1), dense, {}, 1e-5),
    "schedule": (lambda: optimizers.SGD(decay), dense, {}, 1e-5),
    "class weights": (sgd, dense, {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0}}, 1e-5),
    "train_step": (sgd, own, {}, 1e-5),
    "mixed precision": (scaled, mixed, {}, 0.02),
}
for optimizer, make, options, tolerance in cases.values():
    require_one_process(lambda wrap: make(optimizer=wrap(optimizer())), x, y, tolerance, **options)

if backend == "tensorflow":
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    one, model = dense(optimizer=sgd()), dense(optimizer=DistributedOptimizer(sgd()))
    one.fit(rows.batch(8 * size), epochs=2, validation_data=rows.batch(7), verbose=0)
    ours = model.fit(
        shard(rows).batch(8), epochs=2, validation_data=shard(rows).batch(7), verbose=0, callbacks=distribute()
    ).history
    assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-5
    for name, values in one.history.history.items():
        assert abs(np.array(values) - ours[name]).max() < 1e-5, (name, values, ours[name])
