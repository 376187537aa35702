"""The warning about outer steps that are too large, on the rounds of real rules."""

import logging

import numpy as np
import pytest

from platoon_base.rules import DiLoCo, LocalSGD
from platoon_base.worker.carried_center import CarriedCenter

pytestmark = pytest.mark.base


def rounds_of(rule, rounds=60, rate=0.3, noise=1.0):
    """Two workers on noisy quadratics, each round a step of gradient descent; the watch of the first."""
    rng = np.random.default_rng(0)
    watch = CarriedCenter(repr(rule), rank=3)
    c = np.full(5000, 1.0)
    states = tuple(np.zeros_like(c) for _ in rule.center_state)
    for _ in range(rounds):
        learned = [c - rate * (c + noise * rng.standard_normal(c.size)) for _ in range(2)]
        brought = watch.before_round([learned[0]])
        rule.step(np.mean(learned, axis=0) - c, c, states, 1.0)
        watch.after_round(brought, [c])


@pytest.mark.parametrize("rule", [LocalSGD(), DiLoCo(), DiLoCo(0.7, 0.9)], ids=str)
def test_what_pays_is_not_warned_about(rule, caplog):
    with caplog.at_level(logging.WARNING):
        rounds_of(rule)
    assert not caplog.records


@pytest.mark.parametrize("rule", [DiLoCo(4, 0.95), DiLoCo(8, 0.8)], ids=str)
def test_what_its_momentum_carries_is_told_once(rule, caplog):
    with caplog.at_level(logging.WARNING):
        rounds_of(rule, rate=0.1, noise=0.2)
    (record,) = caplog.records
    assert "rank 3" in record.getMessage()
    assert repr(rule) in record.getMessage()
    assert "lower momentum or outer_lr" in record.getMessage()


def test_the_begin_means_nothing(caplog):
    with caplog.at_level(logging.WARNING):
        rounds_of(DiLoCo(8, 0.8), rounds=20)
    assert not caplog.records


def test_a_worker_that_learns_nothing_is_not_told(caplog):
    watch = CarriedCenter("LocalSGD()", 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            watch.after_round(watch.before_round([np.ones(3)]), [np.ones(3)])
    assert not caplog.records
