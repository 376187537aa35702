from keras_preamble import *
from platoon_base.errors import DataMismatchError
from platoon_plugins.keras.fit_arguments import divide

x, y = data(90)


def complaints(make, shards=shard):
    worker.barrier("before")
    try:
        shards(*make())
    except DataMismatchError as exc:  # by which the job ends, after any number of steps
        text = str(exc)
    else:
        text = ""
    worker.barrier("after")
    refused = everyones([float(bool(text))])[:, 0]
    assert not text or "train_test_split(x, y, random_state=0)" in text, text
    return refused.sum()


def split(seed, rows=60):
    order = np.random.RandomState(seed).permutation(90)
    return x[order[:rows]], y[order[:rows]]


def mask(seed):
    chosen = np.random.RandomState(seed).rand(90) < 0.8
    return x[chosen], y[chosen]


whole = lambda *data: shard(*data, validation_split=0.3)
assert complaints(lambda: split(0)) == 0
assert complaints(lambda: split(1 + rank)) == 1  # on the one that comes later
assert complaints(lambda: split(2 + rank), whole) == 1
validated = lambda *rows: divide(None, {"validation_data": rows}, worker)
assert complaints(lambda: split(3 + rank), validated) == 1
assert complaints(lambda: mask(1)) == 0
assert complaints(lambda: mask(2 + rank)) == 1
assert complaints(lambda: ({"a": x[:30], "b": [x[rank : 30 + rank]]}, y[:30])) == 1
if rank == 0:  # one more call, for other rows, that is legitimate
    shard(x[:, :2])
assert complaints(lambda: split(5)) == 0
if not KERAS_2 and keras.backend.backend() != "tensorflow":
    import torch.utils.data as td

    rows = td.TensorDataset(*map(__import__("torch").tensor, (x, y)))
    splits = lambda seed: td.Subset(rows, np.random.RandomState(seed).permutation(90)[:60].tolist())
    assert complaints(lambda: [td.DataLoader(splits(1))]) == 0
    assert complaints(lambda: [td.DataLoader(splits(2 + rank))]) == 1

    class Noisy(td.Dataset):
        """Only the labels of its items tell which rows it has."""

        def __init__(self, seed):
            self.order = np.random.RandomState(seed).permutation(90)[:60]

        def __len__(self):
            return len(self.order)

        def __getitem__(self, i):
            return x[self.order[i]] + np.random.default_rng().random(6, "float32"), y[self.order[i]]

    assert complaints(lambda: [td.DataLoader(Noisy(1))]) == 0
    assert complaints(lambda: [td.DataLoader(Noisy(2 + rank))]) == 1
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    rows = lambda seed: tf.data.Dataset.from_tensor_slices(split(seed))
    noisy = rows(1).map(lambda x, y: (x + tf.random.uniform([6]), y))
    assert complaints(lambda: [noisy.batch(7)]) == 0

    def drawn():
        yield np.random.RandomState().rand(6)

    drawing = tf.data.Dataset.from_generator(drawn, output_signature=tf.TensorSpec(6, "float64"))
    assert complaints(lambda: [drawing]) == 0
    assert complaints(lambda: [rows(rank).map(lambda x, y: (x * 2, y))]) == 1
    assert complaints(lambda: [tf.data.Dataset.range(9 + rank)]) == 1
