"""`AveragedEASGD`: its scaled steps and its average, against plain training and plain means."""

import numpy as np
import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.rules import AveragedEASGD, default_period, default_rule

pytestmark = pytest.mark.base


def test_the_warm_up_is_a_ramp():
    rule = AveragedEASGD(scale=1.5, warmup=10).resolved(4)
    assert [rule.at_count(n).kernel_args()[0] for n in (1, 5, 10, 11, 1000)] == [0.2, 1.0, 2.0, 2.0, 2.0]
    assert AveragedEASGD(scale=1.5, warmup=0).resolved(4).at_count(1).kernel_args()[0] == 2.0


def test_steps_are_shortened_to_those_of_the_script_at_most():
    rule, found = AveragedEASGD(scale=2.0, warmup=0), []
    for _ in range(8):
        found.append(1 + rule.resolved(4).kernel_args()[0])
        rule = rule.shortened()
    assert found == [4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rule.shortened() is rule
    shorter = AveragedEASGD(scale=0.25, warmup=0)
    assert 1 + shorter.resolved(4).kernel_args()[0] == 0.5  # 0.25 times the root of 4
    assert shorter.shortened().resolved(4).kernel_args() == shorter.resolved(4).kernel_args()


def test_the_warm_up_goes_on_in_later_trainings():
    rule = AveragedEASGD(scale=1.5, warmup=10).resolved(4)
    assert rule.at_count(1, before=4).kernel_args()[0] == 1.0
    assert rule.at_count(1, before=4).kernel_args()[3] == rule.at_count(1).kernel_args()[3]


def test_the_average_goes_back_over_a_part_of_the_synchronizations():
    """With k = 16 half of the weight lies on the last twenty-fourth or so, however many there were."""
    rule, weights = AveragedEASGD().resolved(4), np.zeros(8000)
    for exchange in range(8000):
        w = rule.at_count(exchange // 4 + 1).kernel_args()[3]
        weights *= 1 - w
        weights[exchange] += w
    assert abs(weights.sum() - 1) < 1e-6
    assert 0.94 < np.searchsorted(np.cumsum(weights), 0.5) / 8000 < 0.97


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 0},
        {"pull": 0},
        {"pull": 1.1},
        {"scale": 0},
        {"scale": "x"},
        {"k": -1},
        {"warmup": -1},
        {"warmup": 1.5},
    ],
    ids=str,
)
def test_values_outside_their_ranges_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=f"got {next(iter(wrong))}="):
        AveragedEASGD(**wrong)


def test_it_is_the_default_of_adapters_at_every_batch(monkeypatch):
    for name in ("PLATOON_RULE", "PLATOON_EVERY_N_BATCHES"):
        monkeypatch.delenv(name, raising=False)
    assert default_period() == 1
    assert repr(default_rule(1)).startswith("AveragedEASGD(")
    for other in (default_rule(), default_rule(2), default_rule(1, ["float16"])):
        assert repr(other).startswith("CenterMomentum(")
    monkeypatch.setenv("PLATOON_RULE", "EASGD(alpha=0.2)")
    assert default_period() == 4
    assert repr(default_rule(1)) == "EASGD(alpha=0.2)"
