from keras_preamble import *

x, y = data(160)
alone = dense(optimizer=keras.optimizers.SGD(0.5, momentum=0.9))
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.9)))
if rank:
    model.set_weights([w + 1 for w in model.get_weights()])
uncompiled = keras.Sequential([L.Dense(3, input_shape=(6,))] if KERAS_2 else [keras.Input((6,)), L.Dense(3)])
fit = lambda model: model.fit(x, y, verbose=0, callbacks=distribute())
for call in (broadcast_variables, fit) if KERAS_2 else (fit,):
    with raises((PlatoonError, RuntimeError, ValueError), "compile"):
        call(uncompiled)
if not KERAS_2:  # as in a loop with an optimizer of torch
    uncompiled.set_weights([w + rank for w in uncompiled.get_weights()])
    before = everyones(flat(uncompiled.get_weights()))
    broadcast_variables(uncompiled)
    assert (flat(uncompiled.get_weights()) == before[0]).all() and (before[0] != before[1]).all()
    if keras.backend.backend() == "torch":
        weight = uncompiled.trainable_weights[0].value
        weight.grad = __import__("torch").full_like(weight, rank)
        worker.all_reduce(weight.grad, "mean", dest=weight.grad)
        assert (weight.grad == 0.5).all()
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.5))  # as in a loop over optimizer.apply
    weights = uncompiled.trainable_weights
    gradients = [keras.ops.full(w.shape, rank, "float32") for w in weights]
    optimizer.build(weights)
    with raises(PlatoonError, "model.compile(optimizer)"):
        optimizer.apply(gradients, weights)
    uncompiled.compile(optimizer)
    broadcast_variables(uncompiled)
    optimizer.apply(gradients, weights)
    assert abs(flat(uncompiled.get_weights()) - before[0] + 0.25).max() < 1e-6
    unbuilt = keras.Sequential([L.Dense(3)])
    with raises(PlatoonError, "call model.build"):
        broadcast_variables(unbuilt)
broadcast_variables(model)
mine, labels = shard(x, y)
for k in range(10):
    alone.train_on_batch(x[16 * k : 16 * k + 16], y[16 * k : 16 * k + 16])
    model.train_on_batch(mine[8 * k : 8 * k + 8], labels[8 * k : 8 * k + 8])
assert abs(flat(alone.get_weights()) - flat(model.get_weights())).max() < 1e-5
