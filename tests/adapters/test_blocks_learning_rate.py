"""The learning rate of main loops: scaled, warmed up, and by schedules."""

import pickle

import numpy as np
import pytest
from needing import require
from scripts_here import script_path

require("blocks.main_loop")

import theano
from blocks.algorithms import TrainingAlgorithm
from blocks.extensions import FinishAfter, SimpleExtension
from blocks.extensions.training import SharedVariableModifier
from blocks.main_loop import MainLoop
from fuel.datasets import IterableDataset
from fuel.streams import DataStream

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks import LearningRateWarmup, scale_schedule
from platoon_plugins.blocks.learning_rate import warn_of_unscaled_schedules

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(600)]

WARMUP = script_path("blocks_learning_rate_warmup")


@pytest.mark.parametrize("how", ["linear", "sqrt"])
def test_two_workers_train_as_one_process_with_the_rates_of_the_formula(run_blocks, how):
    """Then once more, resumed in the midst of the warm-up: the same bits."""
    run_blocks(WARMUP, args=[how]).require_success()
    run_blocks(WARMUP, args=[how, "resume"]).require_success()


class Nothing(TrainingAlgorithm):
    def initialize(self, **kwargs):
        """Needs nothing."""

    def process_batch(self, batch):
        """Trains nothing."""


class Rates(SimpleExtension):
    def __init__(self, variable):
        super().__init__(before_batch=True)
        self.variable, self.seen = variable, []

    def do(self, which_callback, *args):
        self.seen.append(float(self.variable.get_value()))


def rates_of(variable, *extensions, epochs):
    """Return the values of a variable before each batch of a main loop with 2 batches an epoch."""
    rates = Rates(variable)
    stream = DataStream(IterableDataset([1, 2]))
    MainLoop(Nothing(), stream, extensions=[*extensions, rates, FinishAfter(after_n_epochs=epochs)]).run()
    return rates.seen


def test_without_the_number_of_batches_the_rate_is_raised_epoch_by_epoch(solo_worker, monkeypatch):
    monkeypatch.setattr(solo_worker, "global_size", 4)
    rate = theano.shared(0.8)
    seen = rates_of(rate, LearningRateWarmup(rate, 3, worker=solo_worker), epochs=4)
    assert seen == pytest.approx([0.2, 0.2, 0.4, 0.4, 0.6, 0.6, 0.8, 0.8])


def test_a_schedule_for_one_process_ends_at_the_same_epoch(solo_worker, monkeypatch):
    monkeypatch.setattr(solo_worker, "global_size", 3)
    rate = theano.shared(1.0)
    schedule = scale_schedule(lambda n: 1 - n / 24, worker=solo_worker)
    assert rates_of(rate, SharedVariableModifier(rate, schedule), epochs=2) == pytest.approx(
        [1, 21 / 24, 18 / 24, 15 / 24]
    )


class Decay(SharedVariableModifier):
    """Have a method in place of the function."""

    num_args = 1

    def function(self, n):
        return 1.0 / n


def test_a_schedule_that_counts_batches_and_is_not_scaled_is_told(solo_worker, monkeypatch, caplog):
    monkeypatch.setattr(solo_worker, "global_size", 3)
    rate = theano.shared(1.0, name="rate")
    scaled = scale_schedule(lambda n: 1 - n / 24, worker=solo_worker)
    by_epoch = {"after_batch": False, "after_epoch": True}
    fine = [
        SharedVariableModifier(rate, scaled),
        SharedVariableModifier(rate, pickle.loads(pickle.dumps(scale_schedule(np.sqrt, worker=solo_worker)))),
        SharedVariableModifier(rate, lambda n, old: 0.9 * old, **by_epoch),
        FinishAfter(after_n_batches=4),
    ]
    warn_of_unscaled_schedules(fine, 3)
    assert not caplog.records
    late = [
        SharedVariableModifier(rate, lambda n: 1.0 / n),
        SharedVariableModifier(rate, lambda n: 1.0 / n, **by_epoch),
        SharedVariableModifier(rate, lambda n, old: 0.9 * old),
        Decay(rate, None),
    ]
    for extension in late:
        caplog.clear()
        warn_of_unscaled_schedules([extension], 3)
        assert "changes rate by the number of batches: in an epoch a worker makes 1/3" in caplog.text


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w: LearningRateWarmup(0.1, worker=w), "pass the shared variable of the step rule"),
        (lambda w: LearningRateWarmup(theano.shared(0.1), steps_per_epoch=0, worker=w), "at least 1"),
        (lambda w: scale_schedule(lambda n, old: old, worker=w), "also takes the old value"),
    ],
)
def test_bad_arguments_are_refused(solo_worker, call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call(solo_worker)
