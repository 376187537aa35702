"""Data that workers should have alike, and data of which each should have its part, on every back end."""

import pytest

from platoon_base import compat

compat.apply()
keras = pytest.importorskip("keras", reason="needs Keras: `make test` runs this file in .venv, .nox/keras3, .nox/tf")

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]


def test_other_splits_on_each_worker_are_refused(run_keras):
    """By a random split without a seed, or a mask, rows that one worker trains on are another's for validation."""
    run_keras(
        """
        x, y = data(90)

        def complaints(make, shards=shard):
            worker.barrier("before")
            try:
                shards(*make())
            except PlatoonError as exc:
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
        assert complaints(lambda: mask(1)) == 0
        assert complaints(lambda: mask(2 + rank)) == 1
        assert complaints(lambda: ({"a": x[:30], "b": [x[rank:30 + rank]]}, y[:30])) == 1
        if rank == 0:  # one more call, for other rows, that is legitimate
            shard(x[:, :2])
        assert complaints(lambda: split(5)) == 0
        if not KERAS_2 and keras.backend.backend() != "tensorflow":
            import torch.utils.data as td
            rows = td.TensorDataset(*map(__import__("torch").tensor, (x, y)))
            splits = lambda seed: td.Subset(rows, np.random.RandomState(seed).permutation(90)[:60].tolist())
            assert complaints(lambda: [td.DataLoader(splits(1))]) == 0
            assert complaints(lambda: [td.DataLoader(splits(2 + rank))]) == 1
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
        """
    ).require_success()


def test_a_fit_of_the_same_data_on_all_workers_says_so(run_keras):
    """And a torch DataLoader that is sharded trains as one process does."""
    outcome = run_keras(
        """
        import warnings
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
        """
    ).require_success()
    text = " WARNING platoon_base.system.warn: the 2 workers train on the same data"  # which the launcher shows
    assert [text in log for log in outcome.logs] == [True, False]
