"""The rules between hosts, against their equations by hand, and the texts that name them."""

import numpy as np
import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.rules.hosts import AverageHosts, DiLoCoHosts, hosts_rule

pytestmark = pytest.mark.base


@pytest.fixture
def copies():
    rng = np.random.default_rng(5)
    return [rng.normal(size=40).astype("float32") for _ in range(3)]


def test_averaging_brings_all_hosts_to_the_mean(copies):
    mean = sum(copies) / 3
    for own in copies:
        np.testing.assert_allclose(own + AverageHosts().correction(own, mean), mean, atol=1e-6)


def test_a_weaker_average_goes_a_part_of_the_way(copies):
    mean = sum(copies) / 3
    moved = AverageHosts(0.25).correction(copies[0], mean)
    np.testing.assert_allclose(moved, 0.25 * (mean - copies[0]), rtol=1e-6)
    assert moved.dtype == np.float32


def test_outer_steps_with_momentum_are_the_same_on_all_hosts(copies):
    """Three rounds by hand; hosts drift by a step of their own in between."""
    rule, mu, lr = DiLoCoHosts(0.7, 0.9), 0.9, 0.7
    start = copies[0]
    outer, velocity = start.astype("float64"), np.zeros(40)
    hosts = [start.copy() for _ in range(2)]
    states = [(start.copy(), np.zeros(40, "float32")) for _ in range(2)]
    for turn in range(3):
        for host, drift in zip(hosts, copies[1:]):
            host += 0.1 * (turn + 1) * drift
        mean = (hosts[0] + hosts[1]) / 2
        gradient = outer - mean
        velocity = mu * velocity + gradient
        outer = outer - lr * (gradient + mu * velocity)
        for host, state in zip(hosts, states):
            host += rule.correction(host, mean, state)
            np.testing.assert_allclose(host, outer, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("average", AverageHosts()),
        ("Average(0.5)", AverageHosts(0.5)),
        (" diloco ", DiLoCoHosts()),
        ("diloco(1, 0)", DiLoCoHosts(1.0, 0.0)),
    ],
)
def test_texts_name_rules(text, rule):
    assert hosts_rule(text) == rule


@pytest.mark.parametrize("text", ["", "mean", "average(x)", "average(1, 2)", "average(0)", "diloco(1", "diloco(0, 1)"])
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigurationError):
        hosts_rule(text)
