from keras_preamble import data, dense, distribute, everyones, flat, keras, rank, shard, size
from platoon_plugins.keras import LocalSGD

x, y = data(10 * size * 8)
alone = dense(optimizer=keras.optimizers.SGD(0.5))
alone.fit(x, y, batch_size=8 * size, shuffle=False, verbose=0)
model = dense(optimizer=keras.optimizers.SGD(0.5))
if rank:
    model.set_weights([w + 1 for w in model.get_weights()])  # rank 0's count
model.fit(
    *shard(x, y), batch_size=8, shuffle=False, verbose=0, callbacks=distribute(rule=LocalSGD(), every_n_batches=1)
)
assert abs(flat(alone.get_weights()) - flat(dense().get_weights())).max() > 0.02
assert abs(flat(alone.get_weights()) - flat(model.get_weights())).max() < 1e-5
assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
