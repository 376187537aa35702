"""Losses that are no means over rows, and steps without some gradients: N workers train as one process does."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from keras_here import both_ways, keras, needs_keras_3

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]


def test_what_a_loss_is_divided_by_is_its_weight(run_keras):
    """Masked tokens, sums, means by sample weights, and partial batches: weights and logs of one process."""
    run_keras(
        """
        rows, length = 37, 6  # two full batches and 5 rows for one process; 19 and 18 rows for two workers
        rng = np.random.RandomState(0)
        # Rank 0 gets the short rows.
        lengths = np.where(np.arange(rows) % 2, rng.randint(4, length + 1, rows), rng.randint(1, 3, rows))
        lengths[:16:2] = 0  # and a batch of nothing else than masked tokens, beside one that has some
        tokens = np.where(np.arange(length) < lengths[:, None], rng.randint(1, 10, (rows, length)), 0)
        labels = rng.randint(0, 5, (rows, length, 1))
        weights = rng.uniform(0.1, 3, rows).astype("float32") * np.where(np.arange(rows) % 2, 5, 1)
        every_token = weights[:, None] * rng.uniform(0.5, 1, (rows, length)).astype("float32")

        def build(optimizer, loss):
            np.random.seed(5)
            if not KERAS_2:
                keras.utils.set_random_seed(5)
            start = L.Input((length,), dtype="int32")
            hidden = L.Embedding(10, 4, mask_zero=True)(start)
            regularizer = None if getattr(loss, "reduction", "") == "sum" else keras.regularizers.l2(0.01)
            out = L.Dense(5, activation="softmax", kernel_regularizer=regularizer)(hidden)
            model = keras.models.Model(start, out)
            model.compile(optimizer, loss=loss)
            return model

        Loss = keras.losses.SparseCategoricalCrossentropy
        losses = {"mask": (Loss(), KERAS_2), "sum": (Loss(reduction="sum"), False)}
        if not KERAS_2:
            losses["mean by weights"] = Loss(reduction="mean_with_sample_weight"), True
            losses["ignored class"] = Loss(ignore_class=3), False
        for name, (loss, weighted) in losses.items():
            data = (tokens, labels, weights if KERAS_2 else every_token) if weighted else (tokens, labels)
            rate = 0.02 if name == "sum" else 1.0
            options = {"epochs": 2, "shuffle": False, "verbose": 0}

            def fit(model, data, batch, callbacks):
                x, y, *weights = data
                return model.fit(x, y, sample_weight=weights[0] if weights else None, validation_data=data,
                                 batch_size=batch, callbacks=callbacks, **options).history

            alone = build(keras.optimizers.SGD(rate, momentum=0.5), loss)
            start = flat(alone.get_weights())
            expected = fit(alone, data, 16, [])
            model = build(DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.5)), loss)
            got = fit(model, shard(*data), 8, distribute())
            difference = abs(flat(alone.get_weights()) - flat(model.get_weights())).max()
            moved = abs(flat(alone.get_weights()) - start).max()
            assert moved > 0.01, (name, moved)
            assert difference < 1e-5, (name, difference, moved)
            for key in ("loss", "val_loss"):
                np.testing.assert_allclose(got[key], expected[key], rtol=2e-6, err_msg=f"{name} {key}")

            if name == "mask":  # with a rule, what is evaluated is the center
                model = build(keras.optimizers.SGD(0.0), loss)
                x, y, *weights = data
                expected = model.evaluate(x, y, 16, sample_weight=weights[0] if weights else None, verbose=0)
                got = fit(model, shard(*data), 8, distribute(rule=EASGD()))
                np.testing.assert_allclose(got["val_loss"], expected, rtol=2e-6)
        """
    ).require_success()


@needs_keras_3
def test_a_train_step_and_a_loss_of_the_models_own(run_keras):
    """They may call compute_loss without x, and give it other arguments; batches count by their rows."""
    run_keras(
        """
        def own(optimizer, other_arguments):
            class Own(OwnStep, keras.Sequential):
                def loss_of(self, x, y):
                    y_pred = self(x, training=True)
                    return self.compute_loss(y, y_pred) if other_arguments else self.compute_loss(y=y, y_pred=y_pred)

                if other_arguments:
                    def compute_loss(self, *tensors):
                        y, y_pred = tensors if len(tensors) == 2 else tensors[1:3]  # of JAX's train_step
                        return keras.ops.mean(keras.ops.square(y - y_pred))

            keras.utils.set_random_seed(5)
            model = Own([keras.Input((6,)), L.Dense(8, activation="tanh"), L.Dense(3)])
            model.compile(optimizer, loss="mse")
            return model

        x, y = data(37)
        for other_arguments in (False, True):
            alone = own(keras.optimizers.SGD(0.5), other_arguments)
            start = flat(alone.get_weights())
            alone.fit(x, y, batch_size=16, shuffle=False, verbose=0)
            model = own(DistributedOptimizer(keras.optimizers.SGD(0.5)), other_arguments)
            model.fit(*shard(x, y), batch_size=8, shuffle=False, verbose=0, callbacks=distribute())
            assert abs(flat(alone.get_weights()) - start).max() > 0.05
            assert abs(flat(alone.get_weights()) - flat(model.get_weights())).max() < 1e-5
            model = own("sgd", other_arguments)
            model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD()))
        """
    ).require_success()


def test_a_loss_that_a_layer_adds_has_to_be_a_mean_over_rows(run_keras):
    """Its sum over a mini-batch is not known as one: a warning says what becomes of it; one of weights has none."""
    run_keras(
        """
        import warnings
        x, y = data(32)

        class Added(L.Layer):
            def call(self, z):
                self.add_loss(0.01 * keras.ops.sum(z * z))
                return z

        def said(layer, wrap, **options):
            start = L.Input((6,))
            out = L.Dense(3, activation="softmax", kernel_regularizer="l2")(layer(L.Dense(4)(start)))
            model = keras.models.Model(start, out)
            model.compile(wrap(keras.optimizers.SGD(0.1)), loss="categorical_crossentropy")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(**options))
            return [str(each.message) for each in caught if "layers add losses" in str(each.message)]

        by_activity = L.ActivityRegularization(l2=0.01)
        assert not said(by_activity, lambda plain: plain, rule=EASGD())
        if not KERAS_2:
            assert not said(by_activity, DistributedOptimizer), "Keras divides it by the number of rows"
        (warning,) = said(by_activity if KERAS_2 else Added(), DistributedOptimizer)
        assert "counts N times less on N workers" in warning, warning
        """
    ).require_success()


def test_losses_are_kept_within_a_fit_alone(solo_worker):
    """All of its batches, of which the loss is put together by hand; none of those that follow it."""
    from platoon_plugins.keras.batch_losses import BatchLosses

    losses = BatchLosses()
    losses.add(1.0, 2.0, 3.0)
    assert losses.count("train") == 0
    losses.begin("train")
    for batch in range(600):
        losses.add(batch, batch % 3, 2)  # every third is masked, and counts as 0
    losses.add(7.0, 5.0, 2, training=False)
    assert losses.count("train") == 600
    mean = sum(batch for batch in range(600) if batch % 3) / 600
    assert math.isclose(losses.combined("train", solo_worker, "losses"), mean)
    assert losses.count("test") == 0
    losses.end()
    losses.add(1.0, 2.0, 3.0)
    assert losses.count("train") == 0


@needs_keras_3
def test_each_thread_sees_the_losses_that_it_computes():
    from platoon_plugins.keras.backends.keras3_losses import watched

    both = threading.Barrier(2, timeout=60)

    def look(count):
        loss = keras.losses.MeanSquaredError()
        with watched() as terms:
            both.wait()
            for _ in range(count):
                loss(np.zeros((2, 3)), np.ones((2, 3)))
            both.wait()
        loss(np.zeros((2, 3)), np.ones((2, 3)))
        return [term.loss is loss for term in terms]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(look, (3, 5))) == [[True] * 3, [True] * 5]


def test_a_batch_in_which_all_is_masked_leaves_float16_gradients_finite(run_keras):
    run_keras(
        """
        from platoon_plugins.keras.gradients import Batch, GradientAverage

        average = GradientAverage(worker)
        average.attach("any", [np.zeros(3, "float16")])
        for weights, expected in (((5, 5), 2.0), ((0, 0), 0.0), ((100, 300), 2.5)):
            for _ in range(2):
                mean, = average.average(Batch([np.full(3, 1 + 2 * rank, "float16")], weights[rank], [True]))
            np.testing.assert_allclose(mean, expected)
        """
    ).require_success()


@needs_keras_3
@both_ways
def test_a_weight_without_a_gradient_and_uneven_batches(run_keras):
    """It stays as in one process; where only some workers use it, the others' gradient is zero."""
    run_keras(
        """
        on_torch = keras.backend.backend() == "torch"

        class Spare(keras.Model):
            def __init__(self, used=False):
                super().__init__()
                self.spare, self.out, self.used = L.Dense(3), L.Dense(3), used
            def call(self, x):
                spare = self.spare(x)
                return self.out(x) + spare if self.used else self.out(x)

        def build(optimizer, **options):
            keras.utils.set_random_seed(5)
            model = Spare(**options)
            model(np.zeros((1, 6), "float32"))
            model.compile(optimizer, loss="mse")
            return model

        adam = lambda: keras.optimizers.Adam(0.05, weight_decay=0.1)
        x, y = data(41)  # 21 and 20 rows: three batches, the last of 5 and 4
        alone = build(adam())
        start = flat(alone.get_weights())
        alone.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        model = build(DistributedOptimizer(adam()))
        model.fit(*shard(x, y), batch_size=8, shuffle=False, verbose=0, callbacks=distribute())
        assert abs(flat(alone.get_weights()) - start).max() > 0.05
        assert abs(flat(alone.get_weights()) - flat(model.get_weights())).max() < 1e-5

        x, y = data((24, 48)[rank])  # three batches and six
        for used in (False, True) if on_torch else (False,):
            model = build(DistributedOptimizer(adam()), used=used and rank == 1)
            model.fit(x, y, epochs=2, batch_size=8, verbose=0, callbacks=distribute())
            everyone = everyones(flat(model.get_weights()))
            assert (everyone == everyone[0]).all()
            spare = flat(model.spare.get_weights())
            if keras.backend.backend() != "jax":  # which has zeros for such gradients, and lets the weights decay
                assert (abs(spare - flat(build("sgd").spare.get_weights())).max() > 0.01) == used
        """
    ).require_success()
