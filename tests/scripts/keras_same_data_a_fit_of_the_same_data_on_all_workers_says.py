from keras_preamble import *
from platoon_base.system.warn import said as said_before

x, y = data(64)


def fit(*data, model=None, epochs=1, **options):
    model = model or dense()
    said_before.clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(*data, epochs=epochs, verbose=0, callbacks=distribute(), **options)
    return model, sum("divide it among them" in str(warning.message) for warning in said)


first = rank == 0
assert fit(x, y)[1] == first
assert fit(*shard(x, y))[1] == 0
if not KERAS_2 and keras.backend.backend() != "tensorflow":
    import torch.utils.data as td

    rows = td.TensorDataset(*map(__import__("torch").tensor, (x, y)))
    assert fit(td.DataLoader(rows, batch_size=8, shuffle=True))[1] == first
    mine = td.DataLoader(rows, batch_size=8, sampler=td.DistributedSampler(rows, size, rank))
    assert fit(mine, epochs=3)[1] == 0
    assert mine.sampler.epoch == 2  # so that it shuffles anew in each epoch

    class Mine(td.Dataset):
        def __init__(self, x, y):
            self.pairs = list(zip(x, y))

        def __len__(self):
            return len(self.pairs)

        def __getitem__(self, i):
            return self.pairs[i]

    assert fit(td.DataLoader(Mine(x, y), batch_size=8))[1] == first
    assert fit(td.DataLoader(Mine(x[rank::size], y[rank::size]), batch_size=8))[1] == 0
    alone = dense(optimizer=keras.optimizers.SGD(0.5))
    alone.fit(td.DataLoader(rows, batch_size=8 * size), epochs=2, verbose=0)
    averaged = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.5)))
    assert fit(shard(td.DataLoader(rows, batch_size=8)), model=averaged, epochs=2)[1] == 0
    assert abs(flat(alone.get_weights()) - flat(averaged.get_weights())).max() < 1e-5
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    assert fit(rows.shuffle(64).batch(8))[1] == first
    assert fit(shard(rows).shuffle(64).batch(8))[1] == 0
    assert fit(rows.shard(size, rank).batch(8))[1] == 0
    assert fit(rows.skip(32 * rank).take(32).batch(8))[1] == 0
    spec = tf.TensorSpec((6,), "float32"), tf.TensorSpec((3,), "float32")
    mine = tf.data.Dataset.from_generator(lambda: zip(*shard(x, y)), output_signature=spec)
    assert fit(mine.batch(8))[1] == 0
