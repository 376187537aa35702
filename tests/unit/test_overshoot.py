"""The warning about parameters that move farther and farther, on real synchronizations of one worker."""

import logging

import numpy as np
import pytest

from platoon_base.rules import EASGD, CenterMomentum, DiLoCo
from platoon_base.worker.overshoot import Overshoot

pytestmark = pytest.mark.base


def descend(worker, rule, rate, rounds, caplog):
    """Minimize |x|^2 / 2 from x = 1, with four steps to a synchronization; returns the warnings."""
    x = np.ones((3, 50))
    worker.init_shared_params([x, np.ones(())], rule, on_nonfinite="skip")
    with caplog.at_level(logging.WARNING), np.errstate(all="ignore"):
        for _ in range(rounds):
            for _ in range(4):
                x -= rate * x + 1e-9
            worker.sync_params()
    return [record.getMessage() for record in caplog.records if "may diverge" in record.getMessage()]


@pytest.mark.parametrize("rule", [DiLoCo(outer_lr=3.0, momentum=0.95), DiLoCo(outer_lr=20.0, momentum=0.0)], ids=str)
def test_an_outer_step_that_is_too_large_is_told_once(job_of_one, caplog, rule):
    (told,) = descend(job_of_one, rule, 0.3, 60, caplog)
    assert "rank 0" in told
    assert repr(rule) in told
    assert "lower gain, outer_lr or momentum" in told


def test_a_learning_rate_that_is_too_large_is_told(job_of_one, caplog):
    assert len(descend(job_of_one, EASGD(), 2.3, 60, caplog)) == 1


@pytest.mark.parametrize("rule", [CenterMomentum(), EASGD(), DiLoCo(), DiLoCo(0.7, 0.9)], ids=str)
def test_sound_training_is_left_alone(job_of_one, caplog, rule):
    assert descend(job_of_one, rule, 0.05, 200, caplog) == []


def test_a_rate_that_is_warmed_up_is_no_divergence(caplog):
    watch, x = Overshoot(0), [np.zeros(10), np.zeros((0, 3))]
    for step in range(200):
        x[0] += 1e-6 * (step + 1)
        watch.before_sync(x)
        watch.after_sync(x, EASGD())
    assert not caplog.records
