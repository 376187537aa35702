"""Shards of data, arguments, and the learning rate: what needs no second process."""

import itertools
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from keras_here import KERAS_2, keras, needs_keras_3, on_torch
from programs import run_python
from scripts_here import script_path

from platoon_base.errors import ConfigurationError, PlatoonWarning
from platoon_base.fingerprint import fingerprint
from platoon_plugins.keras import (
    EASGD,
    LEADER_ONLY,
    DistributedOptimizer,
    LearningRateWarmup,
    distribute,
    scale_learning_rate,
    scale_schedule,
    seeds,
    shard,
)
from platoon_plugins.keras.fit_arguments import divide
from platoon_plugins.keras.learning_rate import warn_of_schedules
from platoon_plugins.keras.read_order import comparable, describe, is_in_order
from platoon_plugins.keras.same_data import SameBatches
from platoon_plugins.keras.standby import Standby
from platoon_plugins.keras.statistics import decay_for, watch_batch_normalization

pytestmark = pytest.mark.keras

Base = keras.utils.Sequence if KERAS_2 else keras.utils.PyDataset


class Place:
    """Stands in for a worker of a job, of which a shard needs no more than the numbers."""

    closed = True  # nothing is told to it
    compresses_gradients, all_reduce = False, None  # nothing is averaged

    def __init__(self, rank, size, seed):
        self.global_rank, self.global_size, self.seed = rank, size, seed
        self.is_leader = rank == 0
        self.advanced = self

    def require_same(self, name, fingerprint, remedy):
        """What that does is tested with real workers, in test_keras_same_data.py."""

    def require_same_data(self, *data, kind):
        """Likewise."""


def places(size, seed=3):
    return [Place(rank, size, seed) for rank in range(size)]


# Arrays.


@pytest.mark.parametrize("size", [2, 3, 7])
def test_each_row_is_one_workers(size):
    x, y = np.arange(50.0).reshape(25, 2), np.arange(25)
    parts = [shard(x, y, worker=place) for place in places(size)]
    for mine, labels in parts:
        np.testing.assert_array_equal(mine, x[labels])
    assert sorted(np.concatenate([labels for _, labels in parts])) == list(range(25))
    lengths = [len(labels) for _, labels in parts]
    assert max(lengths) - min(lengths) <= 1


@on_torch(pytest.mark.promise)
@pytest.mark.parametrize(("uneven", "lengths"), [("keep", [4, 4, 3]), ("drop", [3, 3, 3]), ("wrap", [4, 4, 4])])
def test_rows_that_cannot_be_dealt_out_evenly(uneven, lengths):
    parts = [shard(np.arange(11), uneven=uneven, worker=place) for place in places(3)]
    assert [len(part) for part in parts] == lengths
    together = np.concatenate(parts)
    assert set(together) == (set(range(9)) if uneven == "drop" else set(range(11)))
    assert parts[2][-1] == {"keep": 8, "drop": 8, "wrap": 0}[uneven]


def test_nested_arrays_are_taken_apart():
    image, text, y = np.arange(12.0).reshape(6, 2), np.arange(6), [10, 11, 12, 13, 14, 15]
    (inputs, labels, weights) = shard({"image": image, "more": [text, (text, None)]}, y, None, worker=places(2)[1])
    np.testing.assert_array_equal(inputs["image"], image[1::2])
    np.testing.assert_array_equal(inputs["more"][0], [1, 3, 5])
    assert isinstance(inputs["more"][1], tuple)
    assert inputs["more"][1][1] is None
    assert labels == [11, 13, 15]
    assert weights is None


def test_data_frames_are_split_by_rows():
    pandas = pytest.importorskip("pandas", reason="needs pandas: `make test` runs this in .nox/keras3")
    part = shard(pandas.DataFrame({"a": range(5)}), worker=places(2)[1])
    assert list(part["a"]) == [1, 3]
    frame = pandas.DataFrame({"n": range(9), "s": list("abcdefghi")})
    assert fingerprint(frame) == fingerprint(frame.copy())
    assert fingerprint(frame) != fingerprint(frame.iloc[::-1])
    assert fingerprint(frame["s"]) != fingerprint(frame["s"].iloc[::-1])


def test_a_validation_split_is_that_of_one_process():
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20)
    parts = [shard(x, y, validation_split=0.25, worker=place) for place in places(3)]
    train = np.concatenate([labels for (_, labels), _ in parts])
    valid = np.concatenate([labels for _, (_, labels) in parts])
    assert sorted(train) == list(range(15))
    assert sorted(valid) == list(range(15, 20))


def test_alone_a_shard_is_everything(solo_worker):
    x, y = np.arange(10.0), np.arange(10)
    assert shard(x, worker=solo_worker) is x
    got = shard(x, y, worker=solo_worker)
    assert got[0] is x
    assert got[1] is y
    (_, train), (_, valid) = shard(x, y, validation_split=0.3, worker=solo_worker)
    assert list(train) == list(range(7))
    assert list(valid) == [7, 8, 9]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w: shard(worker=w), "nothing to shard"),
        (lambda w: shard(np.ones(3), np.ones(4), worker=w), r"\[3, 4\] rows"),
        (lambda w: shard(np.ones(1), worker=w), r"got 1 rows for 2 workers.* np\.repeat\(x, 2, axis=0\)"),
        (lambda w: shard(np.ones(9), uneven="some", worker=w), "uneven='some'"),
        (lambda w: shard(np.ones(9), validation_split=1.0, worker=w), "0 or more and less than 1"),
        (lambda w: shard(np.ones(9), validation_split=0.1, worker=w), r"9 rows, 1 for 2 .*repeat\(x, 2"),
        (lambda w: shard((i for i in range(3)), worker=w), "islice"),
        (lambda w: shard({1, 2, 3}, worker=w), "torch DataLoader"),
        (lambda w: shard(Batches(9), validation_split=0.5, worker=w), "for arrays"),
        (lambda w: shard(Batches(9), np.ones(9), worker=w), "one by one"),
    ],
)
def test_data_that_cannot_be_split_is_refused(call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call(places(2)[0])


# Sequences of batches.


class Batches(Base):
    def __init__(self, rows, size=4, **options):
        super().__init__(**options)
        self.order, self.size = np.arange(rows), size

    def __len__(self):
        return -(-len(self.order) // self.size)

    def __getitem__(self, index):
        rows = self.order[self.size * index : self.size * (index + 1)]
        return {"a": rows, "b": [rows * 2.0]}, -rows

    def on_epoch_end(self):
        np.random.shuffle(self.order)


@pytest.mark.parametrize("rows", [48, 50, 37, 33, 25, 24, 5])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_sharded_sequence_has_as_many_steps_everywhere_and_each_row_once(rows, size):
    parts = [shard(Batches(rows), worker=place) for place in places(size)]
    steps = {len(part) for part in parts}
    assert len(steps) == 1
    assert steps <= {len(Batches(rows)) // size, -(-len(Batches(rows)) // size)}
    orders = []
    for _ in range(3):
        seen = []
        for part in parts:
            for index in range(len(part)):
                inputs, labels = part[index]
                np.testing.assert_array_equal(inputs["b"][0], -2.0 * labels)
                assert len(labels)
                seen.extend(inputs["a"])
        orders.append(seen)
        assert sorted(seen) == list(range(rows))
        state = np.random.get_state()
        for rank, part in enumerate(parts):
            np.random.seed(rank)
            part.on_epoch_end()
            assert np.random.randint(1000) == np.random.RandomState(rank).randint(1000)
        np.random.set_state(state)
    assert orders[0] != orders[1] != orders[2]


def test_a_sequence_of_fewer_rows_than_workers_is_refused():
    with pytest.raises(ConfigurationError, match="use fewer workers"):
        len(shard(Batches(4, size=2), worker=places(5)[0]))


def test_a_sharded_sequence_is_loaded_as_the_whole_is():
    if KERAS_2:
        pytest.skip("Keras 2 passes the number of loaders to fit_generator, not to the sequence")
    part = shard(Batches(20, workers=2, max_queue_size=3), worker=places(2)[0])
    assert (part.workers, part.max_queue_size) == (2, 3)


def test_common_random_numbers_are_common_in_every_thread():
    """Keras reads training and validation data in two threads, and both end an epoch with common numbers."""

    def draw(seed):
        with seeds.Common([seed]):
            return [np.random.permutation(50).tolist() for _ in range(20)]

    expected = [draw(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            assert list(pool.map(draw, range(8))) == expected


@pytest.mark.promise
def test_each_fit_of_a_deterministic_job_draws_other_numbers(monkeypatch):
    monkeypatch.setattr(seeds, "deterministic_seed", lambda: 7)
    before = seeds.state()
    first = seeds.of_epoch(0, 0)
    seeds.go_on(before)
    assert seeds.of_epoch(0, 0) != first
    seeds.restore(before)


def test_alone_a_sequence_stays_as_it_is(solo_worker):
    whole = Batches(9)
    assert shard(whole, worker=solo_worker) is whole


@pytest.mark.skipif(KERAS_2, reason="Keras 2 has no PyDataset: run it in .nox/keras3 (make test)")
def test_a_py_dataset_with_num_batches_and_no_len():
    class Numbered(Base):
        num_batches = 5

        def __getitem__(self, index):
            return np.arange(4 * index, 4 * index + 4)

    parts = [shard(Numbered(), worker=place) for place in places(2)]
    assert [part.num_batches for part in parts] == [3, 3]
    assert sorted(np.concatenate([part[i] for part in parts for i in range(3)])) == list(range(20))
    Numbered.num_batches = None  # without an end
    parts = [shard(Numbered(), worker=place) for place in places(2)]
    assert [part.num_batches for part in parts] == [None, None]
    assert [part[1][0] for part in parts] == [8, 12]


# Loaders of torch.


@pytest.fixture
def torch_data():
    return pytest.importorskip("torch.utils.data", reason="needs torch: run it in .nox/keras3 (make test)")


@pytest.mark.parametrize(("size", "drop_last"), [(2, False), (3, True)])
def test_a_loader_gives_each_row_to_one_worker_anew_in_each_epoch(torch_data, size, drop_last):
    def read(shuffle, epoch=None):
        loader = torch_data.DataLoader(range(25), batch_size=4, shuffle=shuffle, drop_last=drop_last)
        parts = [shard(loader, worker=place) for place in places(size)]
        epochs = []
        for _ in range(3):
            for part in parts if epoch is not None else ():
                part.sampler.set_epoch(epoch)
            batches = [[rows.tolist() for rows in part] for part in parts]
            assert [len(part) for part in parts] == [len(rows) for rows in batches]
            epochs.append(batches)
        return epochs

    in_order = read(shuffle=False)
    assert in_order[0] == in_order[2]
    for rank, batches in enumerate(in_order[0]):
        rows = list(range(rank, 25, size))
        assert batches == [rows[i : i + 4] for i in range(0, len(rows) // 4 * 4 if drop_last else len(rows), 4)]
    first, second, third = read(shuffle=True)
    for epoch in (first, second, third):
        rows = [row for batches in epoch for batch in batches for row in batch]
        assert len(set(rows)) == len(rows)
        if not drop_last:
            assert sorted(rows) == list(range(25))
    assert first != second != third
    assert read(shuffle=True, epoch=1) == [second] * 3


def test_a_loader_that_makes_no_batches(torch_data):
    parts = [shard(torch_data.DataLoader(np.arange(5), batch_size=None), worker=place) for place in places(2)]
    assert [[int(row) for row in part] for part in parts] == [[0, 2, 4], [1, 3]]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs TensorFlow: run it in .nox/tf (make test)")
def test_a_tf_dataset_is_asked_for_its_shard():
    import tensorflow as tf

    part = shard(tf.data.Dataset.range(7), worker=places(2)[1])
    assert [int(item) for item in part] == [1, 3, 5]
    for shuffled in (tf.data.Dataset.range(7).shuffle(7), tf.data.Dataset.range(7).shuffle(7).batch(2).prefetch(1)):
        with pytest.raises(ConfigurationError, match="shard first"):
            shard(shuffled, worker=places(2)[1])


@pytest.mark.parametrize(("steps", "size", "divided"), [(4, 2, 2), (5, 2, 3), (1, 3, 1), (8, 3, 3)])
def test_the_steps_of_an_epoch_are_divided_and_rounded_up(steps, size, divided):
    """So that all of one process's batches are read."""
    values = {"x": None, "steps_per_epoch": steps}
    divide(None, values, places(size)[-1])
    assert values["steps_per_epoch"] == divided


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs TensorFlow: run it in .nox/tf (make test)")
def test_a_tf_dataset_whose_parts_keep_the_order_is_not_compared():
    import tensorflow as tf

    rows = tf.data.Dataset.range(7)
    mapped = [rows.map(abs, num_parallel_calls=2, deterministic=kept) for kept in (None, True, False)]
    assert [is_in_order(each) for each in (rows, rows.map(abs), *mapped)] == [True, True, True, True, False]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs TensorFlow: run it in .nox/tf (make test)")
def test_a_shorter_reading_of_a_tf_dataset_keeps_no_marks_of_a_longer_one():
    import tensorflow as tf

    counts, worker = (16, 3, 3, 3, 3), Place(0, 2, 3)
    rows = map(range, counts)
    dataset = tf.data.Dataset.from_generator(lambda: next(rows), output_signature=tf.TensorSpec((), tf.int64))
    read = comparable(dataset, worker, "passed as x")
    for count in counts:
        assert sum(1 for _ in read) == count
        ((_, _, marks),) = describe(worker)
        assert max(batches for batches, *_ in marks) == count


@needs_keras_3
def test_a_compiled_step_takes_other_momenta():
    watch_batch_normalization()
    normal = keras.layers.BatchNormalization(momentum=0.9)
    model = keras.Sequential([keras.Input((1,)), normal, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    ones, kept = np.ones((4, 1), "float32"), 1.0
    for workers in (1, 2, 1):
        decay_for(model, workers)
        model.fit(ones, ones, verbose=0)
        kept *= 0.9**workers
        np.testing.assert_allclose(keras.ops.convert_to_numpy(normal.moving_mean), [1 - kept], rtol=1e-5)


class Differs(Place):
    """A worker whose data are not those of the others."""

    def require_same(self, name, fingerprint, remedy):
        raise ConfigurationError(f"{name} differs")


class Whole:
    """A set of batches."""


def test_batches_that_are_drawn_at_random_are_not_compared():
    """Even if they are often the same; those that stay the same are refused."""
    drawn = itertools.cycle([0, 0, 0, 1])
    compared = SameBatches(Whole(), Differs(1, 2, 3))
    with pytest.warns(PlatoonWarning, match="the order of the Whole cannot be compared between the workers"):
        compared.check("after its on_epoch_end", lambda: [(np.ones(4), np.full(4, next(drawn)))])
    compared.require()
    compared = SameBatches(Whole(), Differs(1, 2, 3))
    compared.check("after its on_epoch_end", lambda: [(np.ones(4), np.arange(4))])
    with pytest.raises(ConfigurationError, match="differs"):
        compared.require()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs TensorFlow: run it in .nox/tf (make test)")
def test_the_split_of_images_in_the_docs_has_all_classes_and_each_image_once(tmp_path):
    import tensorflow as tf

    for number in range(30):
        folder = tmp_path / f"class {number // 10}"
        folder.mkdir(exist_ok=True)
        image = tf.io.encode_png(np.full((2, 2, 3), number, np.uint8))
        (folder / f"{number}.png").write_bytes(image.numpy())
    page = (Path(__file__).parents[2] / "docs" / "keras_data.md").read_text()
    (code,) = [block for block in page.split("```") if "= keras.utils.image_dataset_from_directory" in block]
    code = code.removeprefix("python").replace("batch_size=None", "batch_size=None, image_size=(2, 2)")
    found = {"train": [], "valid": []}
    for place in places(2):
        names = {"keras": keras, "folder": tmp_path, "shard": lambda rows, place=place: shard(rows, worker=place)}
        exec(code, names)
        for name, rows in found.items():
            rows += [
                (int(i[0, 0, 0]), int(label)) for images, labels in names[name] for i, label in zip(images, labels)
            ]
    assert sorted(number for number, _ in found["train"] + found["valid"]) == list(range(30))
    assert sorted(label for _, label in found["valid"]) == [0, 0, 1, 1, 2, 2]


# Arguments.


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w: distribute(keras.callbacks.EarlyStopping(), worker=w), "pass a list"),
        (lambda w: distribute([keras.callbacks.EarlyStopping], worker=w), "pass objects"),
        (lambda w: distribute([None], worker=w), "pass objects"),
        (lambda w: distribute(rule=EASGD, worker=w), "pass a rule"),
        (lambda w: distribute(rule="easgd", worker=w), "pass a rule"),
        (lambda w: distribute(every_n_batches=0, worker=w), "whole number >= 1"),
        (lambda w: distribute(policy="some", worker=w), "any, all, leader"),
        (lambda w: distribute(on_nonfinite="hope", worker=w), "on_nonfinite"),
        (lambda w: distribute(leader_only=keras.callbacks.CSVLogger, worker=w), "pass a tuple of classes"),
        (lambda w: distribute(leader_only=(keras.callbacks.CSVLogger("log"),), worker=w), "pass a tuple of classes"),
        (lambda w: DistributedOptimizer(3, worker=w), "pass an optimizer"),
        (lambda w: LearningRateWarmup(0.0, worker=w), "greater than 0"),
        (lambda w: LearningRateWarmup(0.1, warmup_epochs=0, worker=w), "greater than 0"),
        (lambda w: LearningRateWarmup(0.1, how="log", worker=w), "linear, sqrt, none"),
        (lambda w: scale_learning_rate(lambda step: 0.1, worker=w), "initial learning rate"),
    ],
)
def test_bad_arguments_are_refused(solo_worker, call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call(solo_worker)


def test_some_callbacks_are_the_leaders_alone():
    class Mine(keras.callbacks.Callback):
        pass

    all_of_them = logger, mine, _ = keras.callbacks.CSVLogger("log"), Mine(), keras.callbacks.EarlyStopping()
    for options, left_out in (
        ({}, [logger]),
        ({"leader_only": (Mine,)}, [mine]),
        ({"leader_only": (*LEADER_ONLY, Mine)}, [logger, mine]),
        ({"leader_only": ()}, []),
    ):
        leaders, others = (distribute(all_of_them, worker=place, **options)[1:-1] for place in places(2))
        assert leaders == [*all_of_them]
        assert [callback.callback for callback in others if isinstance(callback, Standby)] == left_out
        assert [callback for callback in others if callback in all_of_them] == [
            callback for callback in all_of_them if callback not in left_out
        ]


def test_an_optimizer_is_wrapped_once():
    wrapped = DistributedOptimizer("sgd", worker=places(2)[0])
    with pytest.raises(ConfigurationError, match="wrap it only once"):
        DistributedOptimizer(wrapped, worker=places(2)[0])


def _model(optimizer):
    np.random.seed(4)
    if not KERAS_2:
        keras.utils.set_random_seed(4)
    layers = keras.layers
    first = [layers.Dense(5, activation="tanh", input_shape=(3,))] if KERAS_2 else [
        keras.Input((3,)), layers.Dense(5, activation="tanh")
    ]  # fmt: skip
    model = keras.Sequential([*first, layers.Dense(1)])
    model.compile(optimizer, loss="mse")
    return model


def _data():
    x = np.random.RandomState(0).randn(40, 3).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


@pytest.mark.promise
def test_alone_everything_is_a_no_op_with_identical_results(solo_worker):
    x, y = _data()

    def fit(wrap_optimizer, wrap_data, wrap_callbacks):
        callbacks = [keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=0.02)]
        model = _model(wrap_optimizer(keras.optimizers.SGD(0.1)))
        history = model.fit(*wrap_data(x, y), epochs=9, batch_size=8, verbose=0, callbacks=wrap_callbacks(callbacks))
        return history.history["loss"], model.get_weights()

    plain = fit(lambda o: o, lambda *d: d, lambda c: c)
    ours = fit(
        lambda o: DistributedOptimizer(o, worker=solo_worker),
        lambda *d: shard(*d, worker=solo_worker),
        lambda c: distribute(c, worker=solo_worker),
    )
    assert plain[0] == ours[0]
    for a, b in zip(plain[1], ours[1]):
        np.testing.assert_array_equal(a, b)


def test_a_distributed_optimizer_without_the_callbacks_says_so():
    model = _model(DistributedOptimizer("sgd", worker=places(2)[0]))
    with pytest.raises(Exception, match=r"[Pp]ass callbacks=distribute"):
        model.fit(*_data(), verbose=0)


# The learning rate.


@pytest.mark.parametrize(("how", "factor"), [("linear", 2.0), ("sqrt", 2.0**0.5)])
def test_two_workers_train_as_one_process_with_the_rates_of_the_formula(run_keras, how, factor):
    """Least squares: NumPy takes the steps of batches twice as large, at rates computed by hand."""
    run_keras(
        f"""
        from platoon_plugins.keras import LearningRateWarmup, scale_learning_rate
        x = np.random.RandomState(0).randn(24, 6).astype("float32")
        y = x.sum(axis=1, keepdims=True)
        rate = scale_learning_rate(0.05, how="{how}")
        first = [] if KERAS_2 else [keras.Input((6,))]
        shape = {{"input_shape": (6,)}} if KERAS_2 else {{}}
        model = keras.Sequential([*first, L.Dense(1, use_bias=False, kernel_initializer="zeros", **shape)])
        model.compile(DistributedOptimizer(keras.optimizers.SGD(rate)), loss="mse")
        warmup = LearningRateWarmup(rate, warmup_epochs=2, how="{how}")
        options = {{"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}}
        model.fit(*shard(x, y), callbacks=distribute([warmup]), **options)
        alone = np.zeros((6, 1))
        for k in range(9):
            rows = slice(8 * (k % 3), 8 * (k % 3) + 8)
            lr = 0.05 * (1 + ({factor} - 1) * min(k, 6) / 6)
            alone -= lr * 2 / 8 * x[rows].T @ (x[rows] @ alone - y[rows])
        assert abs(alone).max() > 0.1
        np.testing.assert_allclose(flat(model.get_weights()), alone.ravel(), rtol=1e-4)
        """
    ).require_success()


def test_alone_a_callback_may_lower_the_rate_from_the_first_epoch_on(solo_worker):
    model = _model(keras.optimizers.SGD(0.3))
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 2)
    model.fit(*_data(), epochs=3, verbose=0, callbacks=[LearningRateWarmup(0.8, worker=solo_worker), halve])
    lr = model.optimizer.lr if KERAS_2 else model.optimizer.learning_rate
    assert float(keras.backend.get_value(lr) if KERAS_2 else keras.ops.convert_to_numpy(lr)) == pytest.approx(0.1)


def said_of(optimizer, rank=0, **params):
    """Return what is said at the begin of a fit of two workers about the schedule of an optimizer."""
    model = SimpleNamespace(optimizer=optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_schedules(model, places(2)[rank], {"epochs": 3, "steps": 10, **params})
    return " ".join(str(each.message) for each in caught)


@on_torch(pytest.mark.promise)
@pytest.mark.skipif(KERAS_2, reason="Keras 2 has no schedules: run it in .nox/keras3 (make test)")
def test_a_schedule_that_does_not_end_with_the_fit_is_said_at_its_begin():
    schedules, sgd = keras.optimizers.schedules, keras.optimizers.SGD
    said = said_of(sgd(schedules.CosineDecay(0.1, 60)))
    assert "the schedule CosineDecay of the learning rate ends at step 60, this fit has 30 steps on each" in said
    assert "scale_schedule(schedule)" in said
    assert "ends at step 50" in said_of(sgd(schedules.PiecewiseConstantDecay([8, 50], [0.3, 0.2, 0.1])))
    assert "ends at step 45" in said_of(sgd(schedules.CosineDecay(0.1, 40, warmup_target=0.2, warmup_steps=5)))
    assert "unless it was written for these steps" in said_of(sgd(schedules.ExponentialDecay(0.1, 100, 0.9)))
    assert "unless it was written for these steps" in said_of(sgd(schedules.CosineDecay(0.1, 61)), steps=None)
    for silent in (
        schedules.CosineDecay(0.1, 30),
        scale_schedule(schedules.CosineDecay(0.1, 62), worker=places(2)[0]),
        0.1,
    ):
        assert not said_of(sgd(silent))
    assert not said_of(sgd(schedules.CosineDecay(0.1, 63)), rank=1)


@pytest.mark.skipif(not KERAS_2, reason="Keras 3 has no such argument: run it in .venv (make test)")
def test_a_decay_of_keras_2_is_said_at_the_begin_of_a_fit():
    assert "has decay=0.01, which acts at each step" in said_of(keras.optimizers.SGD(0.1, decay=0.01))
    assert not said_of(keras.optimizers.SGD(0.1))


@pytest.mark.skipif(KERAS_2, reason="Keras 2 has no schedules: run it in .nox/keras3 (make test)")
def test_a_scaled_schedule_ends_at_the_same_epoch(tmp_path):
    worker = places(4)[0]
    schedules = keras.optimizers.schedules
    for plain in (
        schedules.PolynomialDecay(0.5, decay_steps=80, end_learning_rate=0.1),
        schedules.CosineDecay(0.1, 100, warmup_target=0.3, warmup_steps=20),
        schedules.PiecewiseConstantDecay([8, 40], [0.3, 0.2, 0.1]),
    ):
        scaled = scale_schedule(plain, worker=worker)
        for step in (0, 1, 2, 9, 19, 25):
            assert float(scaled(step)) == pytest.approx(float(plain(4 * step)), rel=1e-6)
        assert scaled.get_config() == plain.get_config()
        with pytest.raises(ConfigurationError, match="scale it only once"):
            scale_schedule(scaled, worker=worker)

    plain = schedules.PolynomialDecay(0.5, decay_steps=40, end_learning_rate=0.1)
    model = _model(keras.optimizers.SGD(scale_schedule(plain, worker=worker)))
    model.fit(*_data(), batch_size=10, epochs=2, verbose=0)  # 8 steps, that stand for 32
    rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
    assert rate == pytest.approx(0.5 - 0.4 * 32 / 40)
    model.save(tmp_path / "model.keras")
    code = (
        "import sys; sys.modules['platoon_plugins'] = None; import keras;"
        "o = keras.models.load_model(sys.argv[1]).optimizer;"
        "assert type(o._learning_rate) is keras.optimizers.schedules.PolynomialDecay, o._learning_rate;"
        "assert abs(float(keras.ops.convert_to_numpy(o.learning_rate)) - (0.5 - 0.4 * 8 / 40)) < 1e-6"
    )
    run_python("-c", code, tmp_path / "model.keras", timeout=400)


# Devices.


def test_a_worker_with_a_gpu_keeps_its_framework_to_it():
    """Here without one: the framework is asked all the same, and works on."""
    run_python(script_path("keras_data_a_worker_with_a_gpu_keeps_its_framework"), timeout=400)


# Variables.


def test_a_variable_never_shares_memory_with_what_it_was_set_from():
    """JAX takes aligned arrays over; what is written to them later would show in the model."""
    if KERAS_2:
        pytest.skip("the weights of Keras 2 are shared variables of Theano, which copies")
    from platoon_plugins.keras import backends

    model = _model("sgd")
    (weight, *_) = backends.current().weights(model)
    for offset in range(0, 64, 4):
        memory = np.zeros(128 + 4 * 15, np.uint8)
        start = -memory.ctypes.data % 64 + offset
        value = memory[start : start + 4 * 15].view(np.float32).reshape(3, 5)
        value[...] = 7
        weight.set_value(value)
        value[...] = 9
        assert (weight.get_value() == 7).all()
    borrowed = weight.borrow()
    borrowed[...] = 3
    weight.give_back(borrowed)
    assert (weight.get_value() == 3).all()
    again = weight.borrow()
    again[...] = 5
    assert (weight.get_value() == 5).all()  # it is the memory of the weight
