"""Prepared fits read each row once, or raise on all workers at the end of the first epoch."""

from keras_preamble import *
import random
from platoon_base.errors import ConfigurationError, DataMismatchError
from platoon_plugins.keras import shard as sharded

ROWS, B = 48, 4
ids = np.arange(ROWS, dtype="float32")[:, None] / ROWS
powers = [lambda y, _, p=p: y**p for p in (1, 2, 3)]
for p, function in enumerate(powers, 1):
    function.__name__ = f"p{p}"
EXPECTED = [float((ids.astype("float64") ** p).mean()) for p in (1, 2, 3)]
warnings.simplefilter("ignore")


def model_of():
    """Return a model whose metrics are the means of the first three powers of the labels: those of each row once."""
    layers = [L.Dense(1, input_shape=(1,))] if KERAS_2 else [keras.Input((1,)), L.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=powers)
    return model


models = {mode: prepare(model_of(), mode=mode) for mode in ("sync", "async")}  # compiled once


def fit(data, epochs=2, mode="sync", val=False, **options):
    model = models[mode]
    logs = model.fit(data, epochs=epochs, verbose=0, **options).history
    for name in ("p1", "p2", "p3") if not val else ("val_p1", "val_p2", "val_p3"):
        np.testing.assert_allclose(logs[name], [EXPECTED[int(name[-1]) - 1]] * epochs, rtol=1e-5, err_msg=name)


def refused(call, *words, error=DataMismatchError):
    try:
        call()
    except error as exc:
        assert all(word in str(exc) for word in words), exc
        assert str(exc).count("\n") <= 1
        found = 1.0
    else:
        found = 0.0
    assert everyones([found]).sum() == size, "all raise"


def endless(order, noise=0.0, labels=True, rows=ids):
    while True:
        chosen = order()
        for start in range(0, ROWS, B):
            y = rows[chosen[start : start + B]]
            yield y + noise * np.random.default_rng().random(y.shape), y if labels else 0 * y


def shuffled_by_random():
    order = list(range(ROWS))
    random.shuffle(order)
    return order


def late():
    """Return an order that differs between workers within the last batches only."""
    order = np.arange(ROWS)
    order[-6 * B :] = order[np.random.default_rng().permutation(6 * B) - 6 * B]
    return order


steps = {"steps_per_epoch": ROWS // B}
mine = np.random.default_rng  # seeded by nothing
for order in (lambda: np.random.permutation(ROWS), shuffled_by_random):
    generator = endless(order)
    fit(generator, **steps)
    if KERAS_2 or keras.backend.backend() == "tensorflow":  # these read ahead, and lose what they have read
        models["sync"].fit(generator, verbose=0, **steps)
    else:
        fit(generator, **steps)  # continues with the batch after the last one
fit(endless(lambda: mine(5).permutation(ROWS), noise=1.0), **steps)  # random inputs, rows in the same order
for mode in ("sync", "async"):
    refused(lambda mode=mode: fit(endless(lambda: mine().permutation(ROWS)), mode=mode, **steps), "generator passed as")
refused(lambda: fit(endless(late), 1, **steps), "the generator passed as", "batches")
refused(lambda: fit(endless(lambda: mine().permutation(ROWS), labels=False), 1, **steps), "seed")
worker.barrier("generators")


class Batches(keras.utils.Sequence if KERAS_2 else keras.utils.PyDataset):
    """Batches padded to lengths of their own; their labels do not identify the rows."""

    def __init__(self, order, count=5, rows=B):
        super().__init__()
        self.order, self.count, self.rows = order, count, rows

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        rows = self.order[self.rows * i : self.rows * (i + 1)]
        return np.repeat(ids[rows], 2 + i, 1), np.zeros((len(rows), 1), "float32")


def sums(batches):
    """Return the sum of the first column over the batches of all workers."""
    return everyones([sum(float(x[:, 0].astype("float64").sum()) for x, _ in batches)]).sum()


for count, rows in ((5, B), (2 * size + 1, 1), (size + 2, 1), (1, size)):
    own = sharded(Batches(np.arange(ROWS), count, rows))
    np.testing.assert_allclose(sums([own[i] for i in range(len(own))]), ids[: count * rows].sum(), rtol=1e-5)
worker.barrier("padded")
wrong = 0.0
try:
    sharded(Batches(mine().permutation(ROWS)))[0]
except DataMismatchError:
    wrong = 1.0
assert everyones([wrong]).sum() == size - 1, "all but the first"

# Layers that carry their state from batch to batch.
x, y = np.zeros((8, 3, 1), "float32"), np.zeros((8, 1), "float32")


def stateful(nested):
    cell = {"stateful": True, "name": "memory"}
    inside = keras.Sequential(
        [L.SimpleRNN(1, batch_input_shape=(4, 3, 1), **cell)]
        if KERAS_2
        else [keras.Input(batch_shape=(4, 3, 1)), L.SimpleRNN(1, **cell)]
    )
    model = keras.Sequential([inside, L.Dense(1)]) if nested else inside
    model.compile("sgd", "mse")
    return model


for nested in (False, True):
    words = "stateful=True", "memory"
    refused(
        lambda n=nested: prepare(stateful(n)).fit(x, y, 4, verbose=0, shuffle=False), *words, error=ConfigurationError
    )
refused(lambda: evaluate(stateful(False), x, y, batch_size=4), "memory", error=ConfigurationError)

if not KERAS_2 and keras.backend.backend() != "tensorflow":
    import torch
    import torch.utils.data as td

    tensor = torch.tensor(ids)
    rows = td.TensorDataset(tensor, tensor)

    class Own(td.Sampler):
        def __init__(self, rng):
            self.rng = rng

        def __len__(self):
            return ROWS

        def __iter__(self):
            return iter(self.rng.permutation(ROWS).tolist())

    class Stream(td.IterableDataset):
        def __init__(self, rng):
            self.rng = rng

        def __iter__(self):
            return (rows[i] for i in self.rng.permutation(ROWS))

    class Ordered(td.Dataset):
        def __init__(self, rng):
            self.numbers = rng.permutation(ROWS)

        def __len__(self):
            return ROWS

        def __getitem__(self, i):
            return rows[self.numbers[i]]

    generator = torch.Generator()
    fit(td.DataLoader(rows, B, shuffle=True, generator=generator))
    fit(td.DataLoader(rows, B, sampler=Own(np.random)))
    fit(td.DataLoader(rows, batch_sampler=td.BatchSampler(Own(mine(3)), B, False)))
    fit(td.DataLoader(Stream(np.random), B))
    fit(td.DataLoader(Stream(mine(3)), B), validation_data=td.DataLoader(Stream(np.random), B), val=True)
    fit(td.DataLoader(rows, B, sampler=td.DistributedSampler(rows, size, rank)))
    refused(lambda: fit(td.DataLoader(rows, B, sampler=Own(mine()))), "DataLoader with Own")
    refused(lambda: fit(td.DataLoader(Stream(mine()), B)), "DataLoader with Stream", "distribute")
    wrong = td.DistributedSampler(rows, size + 1, rank)
    refused(lambda: fit(td.DataLoader(rows, B, sampler=wrong)), "world_size()", error=ConfigurationError)
    worker.barrier("items")
    differs = 0.0
    try:
        sharded(td.DataLoader(Ordered(mine()), B))
    except DataMismatchError:
        differs = 1.0
    assert everyones([differs]).sum() == size - 1

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    tf.random.set_seed(4)
    spec = (tf.TensorSpec((1,)),) * 2

    def from_rows(order, noise=0.0, labels=True):
        def rows():
            for row in ids[order()]:
                yield row + noise * mine().random(1), row if labels else row * 0

        return tf.data.Dataset.from_generator(rows, output_signature=spec)

    whole = tf.data.Dataset.from_tensor_slices((ids, ids))
    unordered = from_rows(lambda: mine().permutation(ROWS)).batch(B)
    fit(from_rows(lambda: mine(5).permutation(ROWS)).shuffle(9).batch(B))
    fit(from_rows(lambda: mine(5).permutation(ROWS), noise=1.0).batch(B))
    fit(whole.shuffle(ROWS).repeat().batch(B), epochs=3, **steps)
    fit(whole.shuffle(ROWS, seed=1).map(lambda x, y: (x + tf.random.uniform([1]), y), 4).batch(B))
    no_order = tf.data.Options()
    no_order.deterministic = False
    fit(
        whole.interleave(lambda *row: tf.data.Dataset.from_tensors(row), 4, num_parallel_calls=4)
        .batch(B)
        .with_options(no_order)
    )
    refused(lambda: fit(unordered), "tf.data.Dataset passed as x", "default_rng")
    refused(lambda: fit(unordered, mode="async", epochs=1), "tf.data.Dataset passed as x")
    refused(lambda: fit(from_rows(late).batch(B), 1), "passed as x", "batches")
    refused(lambda: fit(from_rows(lambda: mine().permutation(ROWS), labels=False).batch(B), 1), "passed as x")
    refused(lambda: fit(whole.batch(B), validation_data=unordered), "validation_data")
    refused(lambda: evaluate(models["sync"], unordered), "given to shard")
    drawn = tf.random.Generator.from_non_deterministic_state()
    shuffle = lambda n: tf.data.Dataset.from_tensor_slices(tf.argsort(drawn.uniform([ROWS])))
    own = tf.data.Dataset.range(1).flat_map(shuffle).map(lambda i: (tf.gather(ids, i), tf.gather(ids, i)))
    refused(lambda: fit(own.batch(B)), "passed as x")
    padded = tf.data.Dataset.range(2).flat_map(
        lambda i: tf.data.Dataset.from_tensors((tf.ones([4, 2 + i]), tf.zeros([4, 1])))
    )
    few = padded.apply(tf.data.experimental.assert_cardinality(1 if size == 2 else 2))
    text = keras.Sequential([keras.Input((None, 1)), L.GlobalAveragePooling1D(), L.Dense(1)])
    text.compile("sgd", "mse")
    few = few.map(lambda x, y: (x[..., None], y)).take(1 if size == 2 else 2)
    prepare(text).fit(np.ones((8, 2, 1)), np.ones((8, 1)), validation_data=few, verbose=0)
    line = tf.TensorSpec((), tf.string)
    lines = tf.data.Dataset.from_generator(lambda: iter(["a b", "c d e"] * 8), output_signature=line)
    ragged = lines.ragged_batch(2).map(lambda t: (tf.strings.split(t), tf.zeros([2, 1])))
    compared = ragged.map(lambda t, y: (tf.cast(tf.strings.length(t.to_tensor()), tf.float32)[..., None], y))
    prepare(text, mode="sync").fit(compared, verbose=0)
