"""The policy mixed_float16 wraps optimizers by itself; an overflow on one worker leaves the step out on all."""

from keras_preamble import *

x, y = data(8 * size * 4)
x[2 * 8 * size + 1] = np.inf  # a row of rank 1, in the third batch
scaled = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**10)
options = dict(shuffle=False, verbose=0)
one = dense(optimizer=scaled())
one.fit(x, y, batch_size=8 * size, **options)

wrapped = scaled()
wrapped.inner_optimizer = DistributedOptimizer(wrapped.inner_optimizer)  # as compile() leaves it
for optimizer in (DistributedOptimizer(scaled()), wrapped):
    model = dense(optimizer=optimizer)
    model.fit(*shard(x, y, reshuffle=False), batch_size=8, callbacks=distribute(), **options)
    assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-5
    number = lambda optimizer, name: float(keras.ops.convert_to_numpy(getattr(optimizer, name)))
    for name, expected in (("dynamic_scale", 2.0**9), ("iterations", 3)):
        assert number(one.optimizer, name) == expected
        assert (everyones([number(model.optimizer, name)]) == expected).all(), name

keras.config.set_dtype_policy("mixed_float16")
model = dense(optimizer=DistributedOptimizer("sgd"))
keras.config.set_dtype_policy("float32")
assert type(model.optimizer).__name__ == "LossScaleOptimizer"
model.fit(*shard(x, y), batch_size=8, callbacks=distribute(), **options)
same_everywhere(model)

keras.config.set_dtype_policy("mixed_bfloat16" if rank else "float32")
model = dense(optimizer="sgd")
mine, other = ("mixed_bfloat16", "float32") if rank else ("float32", "mixed_bfloat16")
words = f"in {mine}, and worker {1 - rank} has", f"policy='any') in {other}, so their results would not match"
with raises(PlatoonError, *words):
    model.fit(*shard(x, y), batch_size=8, callbacks=distribute(), **options)
