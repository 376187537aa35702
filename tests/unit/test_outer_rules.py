"""Outer steps against values by hand and other implementations, their identities, and the direction of each."""

import numpy as np
import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.rules import ASGD, EAMSGD, EASGD, DiLoCo, LocalSGD, SlowMo, require_rule
from platoon_base.rules.outer import waits

pytestmark = pytest.mark.base

OUTER = [LocalSGD(), SlowMo(0.5, 1.25), DiLoCo(), DiLoCo(0.5, 0.75)]


def states(rule, like):
    return tuple(np.zeros_like(like) for _ in rule.center_state)


def rounds(rule, progress, parts=None, dtype="float64"):
    """The centers after rounds of one element each, from 0 on."""
    c = np.zeros(1, dtype)
    kept = states(rule, c)
    found = []
    for d, part in zip(progress, parts or [1.0] * len(progress)):
        rule.step(np.array([d], dtype), c, kept, part)
        found.append(float(c[0]))
    return found


def test_diloco_is_pytorchs_sgd_with_nesterov_momentum():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    start, progress = rng.standard_normal(50), rng.standard_normal((7, 50))
    theta = torch.nn.Parameter(torch.tensor(start))
    outer = torch.optim.SGD([theta], lr=0.7, momentum=0.8, nesterov=True)
    c, m = start.copy(), np.zeros(50)
    for d in progress:
        theta.grad = torch.tensor(-d)  # theta - mean(theta_i)
        outer.step()
        DiLoCo(0.7, 0.8).step(d.copy(), c, (m,), 1.0)
        np.testing.assert_allclose(c, theta.detach().numpy(), rtol=1e-12)


def test_fragments_follow_the_traces_of_torchft():
    """Its mocked run: a weight of 1, local steps of -2, an outer rate of 2, and two fragments in turns of 3 steps."""
    # Global values of torchft 0.2.0 after 3, 9 and 15 steps of the first fragment, 6 and 12 of the second.
    for turns, expected in [((3, 9, 15), [-11.0, -35.0, -59.0]), ((6, 12), [-23.0, -47.0])]:
        x, c, seen = np.ones(1), np.ones(1), []
        for step in range(1, 16):
            x -= 2.0
            if step in turns:
                DiLoCo(2.0, 0.0).sync(x, c, (), states(DiLoCo(2.0, 0.0), c))
                seen.append(float(x[0]))
        assert seen == expected


def test_local_sgd_follows_the_trace_of_accelerate():
    """Two workers of accelerate 1.15.0 with its LocalSGD, SGD(1, momentum=0.5), and gradients of k and 3k in step k."""
    x, c, moments, seen = np.zeros(2), np.zeros(1), np.zeros(2), []
    for k in range(1, 9):
        moments = 0.5 * moments + np.array([1.0, 3.0]) * k
        x -= moments
        if k in (3, 6, 8):  # The end of its context averages too.
            LocalSGD().step(np.array([np.mean(x - c)]), c)
            x[:] = c
        seen.append(x.tolist())
    assert seen[1:4] == [[-3.5, -10.5], [-15.5, -15.5], [-21.625, -33.875]]
    assert (seen[5], seen[7]) == ([-63.9375, -63.9375], [-115.984375, -115.984375])


def test_slowmo_is_the_papers_with_a_constant_rate():
    rng = np.random.default_rng(4)
    x0, progress, rate, alpha, beta = rng.standard_normal(50), rng.standard_normal((7, 50)), 0.05, 0.9, 0.6
    c, m, u = x0.copy(), np.zeros(50), np.zeros(50)
    for d in progress:
        mean = x0 + d
        u = beta * u + (x0 - mean) / rate
        x0 = x0 - alpha * rate * u
        SlowMo(beta, alpha).step(d.copy(), c, (m,), 1.0)
        np.testing.assert_allclose(c, x0, rtol=1e-10)


@pytest.mark.parametrize("rule", [DiLoCo(1, 0), SlowMo(0), SlowMo().resolved(3)], ids=str)
@pytest.mark.parametrize("part", [1.0, 0.3])
def test_without_momentum_it_is_local_sgd(rule, part):
    progress = np.random.default_rng(0).standard_normal(9)
    assert rounds(rule, progress, [part] * 9) == rounds(LocalSGD(), progress)


@pytest.mark.parametrize("rule", OUTER, ids=str)
def test_a_round_of_one_is_the_step_and_a_copy(rule):
    x, c = np.array([3.0, -1.0]), np.array([1.0, 1.0])
    expected, kept = c.copy(), states(rule, c)
    rule.step(x - c, expected, states(rule, c), 1.0)
    rule.sync(x, c, (), kept)
    np.testing.assert_array_equal(c, expected)
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(("workers", "momentum"), [(1, 0), (3, 0), (4, 0.2), (7, 0.2), (8, 0.5), (16, 0.6), (99, 0.6)])
def test_slow_momentum_goes_by_the_number_of_workers(workers, momentum):
    assert SlowMo().resolved(workers) == SlowMo(momentum)
    assert SlowMo(0.3).resolved(workers) == SlowMo(0.3)


@pytest.mark.parametrize("rule", [DiLoCo, SlowMo])
@pytest.mark.parametrize("bad", [{"outer_lr": 0}, {"outer_lr": -0.7}, {"outer_lr": np.inf}, {"outer_lr": np.nan},
                                 {"outer_lr": "1"}, {"momentum": 1}, {"momentum": -0.1}, {"momentum": np.nan},
                                 {"momentum": [0.5]}])  # fmt: skip
def test_what_diverges_is_refused(rule, bad):
    (name,) = bad
    with pytest.raises(ConfigurationError, match=rf"got {name}=.*"):
        rule(**bad)


@pytest.mark.parametrize("rule", OUTER, ids=str)
def test_they_are_rules_that_wait(rule):
    require_rule(rule)
    assert waits(rule.resolved(2))
    assert eval(repr(rule)) == rule
    assert not waits(EASGD())
    assert not waits(ASGD())


def test_eamsgd_is_easgd_between_worker_and_center():
    assert EAMSGD().resolved(4) == EAMSGD(0.225)
    assert EAMSGD(0.5) != EASGD(0.5)
    assert repr(EAMSGD(0.5)) == "EAMSGD(alpha=0.5)"
    assert not waits(EAMSGD())
    for rule in (EASGD(0.25), EAMSGD(0.25)):
        x, c = np.array([4.0]), np.array([0.0])
        rule.sync(x, c)
        assert (x[0], c[0]) == (3.0, 1.0)
