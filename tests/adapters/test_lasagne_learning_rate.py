"""The learning rate of Lasagne scripts: scaled, warmed up, and by schedules."""

import numpy as np
import pytest
from needing import require

theano = require("theano")
import lasagne

from platoon_base.errors import ConfigurationError
from platoon_plugins.lasagne import LearningRateWarmup, scale_learning_rate, scale_schedule
from platoon_plugins.lasagne.learning_rate import warn_of_unscaled_schedule

pytestmark = pytest.mark.theano


@pytest.mark.parametrize(
    ("how", "factor"), [pytest.param("linear", 2.0, marks=pytest.mark.promise), ("sqrt", 2.0**0.5)]
)
def test_two_workers_train_as_one_process_with_the_rates_of_the_formula(run_lasagne, how, factor):
    """Least squares: NumPy takes the steps of batches twice as large, at rates computed by hand."""
    run_lasagne(
        f"""
        from platoon_plugins.lasagne import LearningRateWarmup, scale_learning_rate, scale_schedule

        x, y = T.fmatrix("x"), T.fvector("y")
        w = theano.shared(np.zeros(3, "f4"), name="w")
        loss = T.sqr(T.dot(x, w) - y).mean()
        rate = theano.shared(np.float32(scale_learning_rate(0.05, how="{how}")))
        warmup = LearningRateWarmup(rate, warmup_epochs=2, steps_per_epoch=3, how="{how}")
        decay = scale_schedule(lambda rows: 1 - rows / 24)
        updates = lasagne.updates.sgd(all_reduce_grads(loss, [w]), [w], rate)
        train = theano.function([x, y], loss, updates=updates)
        rates = []
        for epoch in range(4):
            for batch in iterate_minibatches(X, Y, 4):
                warmup()
                if epoch == 3:
                    rate.set_value(np.float32(0.05 * decay(len(rates))))
                rates.append(float(rate.get_value()))
                train(*batch)

        expected = [0.05 * (1 + ({factor} - 1) * k / 6) for k in range(6)] + [0.05 * {factor}] * 3
        expected += [0.05 * (1 - 2 * k / 24) for k in (9, 10, 11)]
        np.testing.assert_allclose(rates, expected, rtol=1e-6)
        alone = np.zeros(3)
        for k, lr in enumerate(expected):
            rows = slice(8 * (k % 3), 8 * (k % 3) + 8)
            alone -= lr * 2 / 8 * X[rows].T.dot(X[rows].dot(alone) - Y[rows])
        assert abs(alone).max() > 0.1
        np.testing.assert_allclose(w.get_value(), alone, rtol=1e-4)
        """
    ).require_success()


def test_alone_the_rate_and_the_schedule_stay(solo_worker):
    rate = theano.shared(np.float32(scale_learning_rate(0.1, worker=solo_worker)))
    warmup = LearningRateWarmup(rate, steps_per_epoch=2, worker=solo_worker)
    for _ in range(3):
        warmup()
        assert rate.get_value() == np.float32(0.1)
    rate.set_value(np.float32(0.05))
    warmup()
    assert rate.get_value() == np.float32(0.05)
    assert scale_schedule(np.sqrt, worker=solo_worker) is np.sqrt


def test_a_schedule_takes_theano_expressions(solo_worker, monkeypatch):
    monkeypatch.setattr(solo_worker, "global_size", 3)
    step = theano.shared(np.int64(0))
    rate = scale_schedule(lambda k: 0.5 ** (k // 4), worker=solo_worker)(step)
    read = theano.function([], rate, updates={step: step + 1})
    assert [float(read()) for _ in range(4)] == [0.5 ** (3 * k // 4) for k in range(4)]


def test_a_schedule_that_counts_minibatches_and_is_not_scaled_is_told(solo_worker, monkeypatch, caplog):
    """By a count in the graph; that of Adam is none."""
    monkeypatch.setattr(solo_worker, "global_size", 3)
    w, step = theano.shared(1.0, name="w"), theano.shared(np.int64(0), name="step")
    plain = lasagne.updates.adam(w**2, [w], 0.1)
    warn_of_unscaled_schedule(plain, [w], solo_worker)
    assert not caplog.records
    counted = lasagne.updates.sgd(w**2, [w], 0.5 ** (step // 4))
    counted[step] = step + 1
    warn_of_unscaled_schedule(counted, [w], solo_worker)
    assert "the updates depend on step, which counts the mini-batches" in caplog.text
    caplog.clear()
    scaled = lasagne.updates.sgd(w**2, [w], scale_schedule(lambda k: 0.5 ** (k // 4), worker=solo_worker)(step))
    scaled[step] = step + 1
    warn_of_unscaled_schedule(scaled, [w], solo_worker)
    assert not caplog.records


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w: scale_learning_rate(theano.shared(0.1), worker=w), "pass a finite number"),
        (lambda w: LearningRateWarmup(0.1, steps_per_epoch=2, worker=w), "pass the shared variable"),
        (lambda w: LearningRateWarmup(theano.shared(1), steps_per_epoch=2, worker=w), "a float scalar"),
        (lambda w: LearningRateWarmup(theano.shared(np.ones(1)), steps_per_epoch=2, worker=w), "a float scalar"),
        (lambda w: LearningRateWarmup(theano.shared(0.1), steps_per_epoch=2, skip=-1, worker=w), "must be 0 or more"),
        (lambda w: scale_schedule(0.1, worker=w), "scale_learning_rate"),
    ],
)
def test_bad_arguments_are_refused(solo_worker, call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call(solo_worker)
