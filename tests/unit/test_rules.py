"""The rules against values by hand, their invariants, and what every rule of a user's own may rely on."""

import dataclasses
import math
import re
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_table import run_once

from platoon_base.centers.host_kernels import BLOCK
from platoon_base.errors import ConfigurationError
from platoon_base.rules import (
    ASGD,
    EAMSGD,
    EASGD,
    Adopt,
    AveragedEASGD,
    CenterMomentum,
    DiLoCo,
    LocalSGD,
    Rule,
    SlowMo,
    at_period,
    default_period,
    default_rule,
    require_rule,
)
from platoon_base.rules.hosts import AverageHosts, DiLoCoHosts, hosts_rule
from platoon_base.rules.outer import waits

pytestmark = pytest.mark.base

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)
DTYPES = ["float16", "float32", "float64"]
# Small whole numbers and powers of two as alpha: every operation is exact, so equality is equality.
whole = st.lists(st.tuples(*[st.integers(-100, 100)] * 3), min_size=1, max_size=20).map(
    lambda rows: tuple(np.array(rows, dtype="float64").T)
)
halves = st.sampled_from([1.0, 0.5, 0.25, 0.125])


@EXAMPLES
@given(values=whole)
def test_asgd_alone_changes_nothing(values):
    x, c, _ = values
    before, x_old = x.copy(), c.copy()
    ASGD().sync(x, c, (x_old,))
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(("size", "alpha"), [(1, 0.9), (2, 0.45), (4, 0.225), (9, 0.1)])
def test_the_default_alpha_is_the_papers(size, alpha):
    rule = EASGD().resolved(size)
    assert math.isclose(rule.alpha, alpha, rel_tol=1e-15)
    assert rule.kernel_args() == (rule.alpha,)


def test_alpha_must_be_known_before_use():
    with pytest.raises(ConfigurationError, match=r"resolved\(N\)"):
        EASGD().kernel_args()
    with pytest.raises(ConfigurationError, match="alpha is unknown"):
        EASGD().sync(np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("rule", [EASGD(0.3), EASGD(0.9), EAMSGD(0.3)], ids=str)
def test_workers_rest_where_forces_and_gradients_cancel(rule):
    """Quadratic losses of unlike curvature, a step and a synchronization in turns, against the solved equations."""
    a, t, rate, alpha = np.array([1.0, 2.0, 0.5]), np.array([-1.0, 4.0, 10.0]), 0.2, rule.alpha
    x, c = np.zeros((3, 1)), np.zeros(1)
    for _ in range(3000):
        for i in range(3):
            x[i] -= rate * a[i] * (x[i] - t[i])
            rule.sync(x[i], c)
    # Unknowns: the workers, and the center before each turn. A worker rests where its step s = rate a (x - t) and
    # the force d = alpha (x - s - center) cancel, and the center moves by d = -s.
    matrix, right = np.zeros((6, 6)), np.concatenate([(1 - alpha) * rate * a * t, rate * a * t])
    for i in range(3):
        matrix[i, [i, 3 + i]] = (1 - alpha) * rate * a[i] + alpha, -alpha
        matrix[3 + i, [i, 3 + i, 3 + (i + 1) % 3]] = rate * a[i], -1.0, 1.0
    *at, center = np.linalg.solve(matrix, right)[:4]
    np.testing.assert_allclose(x[:, 0], at, rtol=1e-9)
    np.testing.assert_allclose(c, [center], rtol=1e-9)
    assert abs(np.sum(a * (x[:, 0] - t))) < 1e-9


@pytest.mark.parametrize("alpha", [0, -0.1, 1.0001, 5, math.nan, math.inf, -math.inf, "0.5", [0.5], np.array(0.5)])
def test_an_alpha_that_drives_apart_is_refused(alpha):
    with pytest.raises(ConfigurationError, match=r"outside \(0, 1\]"):
        EASGD(alpha)


def test_equal_rules_read_the_same():
    """The controller compares the rules of all workers by their text."""
    assert repr(EASGD().resolved(4)) == repr(EASGD(0.9 / 4))
    assert repr(EASGD(0.5)) != repr(EASGD(0.25))
    assert repr(EASGD(0.5)) != repr(ASGD())


@pytest.mark.parametrize("rule", [None, "auto", 0.5, EASGD, Rule], ids=str)
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(ConfigurationError, match=rf"got sync={re.escape(repr(rule))}: pass a rule, such as EASGD\(\)"):
        require_rule(rule, "sync")


@dataclasses.dataclass(frozen=True)
class Momentum:
    """A rule as a user may write it: the center moves on with a part of its last movement.

    ::

        v := mu v + (x - x_old)
        c := c + v
        x := c
        x_old := c
    """

    mu: float
    kernel: ClassVar[None] = None
    local_state: ClassVar[tuple] = ("x_old",)
    center_state: ClassVar[tuple] = ("v",)

    def resolved(self, size):
        return self

    def kernel_args(self):
        return (self.mu,)

    def sync(self, local, center, local_state, center_state):
        (x_old,), (v,) = local_state, center_state
        v *= local.dtype.type(self.mu)
        v += local - x_old
        center += v
        local[...] = center
        x_old[...] = center


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rule_of_the_users_own_with_state_beside_the_center(dtype):
    rng = np.random.default_rng(0)
    n = 2 * BLOCK + 77
    x, c, x_old, v = (rng.standard_normal(n).astype(dtype) for _ in range(4))
    x[BLOCK + 5] = np.inf
    keep = np.arange(n) != BLOCK + 5
    before = [a.copy() for a in (x, c, x_old, v)]
    v_new = before[3] * np.dtype(dtype).type(0.5) + (before[0] - before[2])
    c_new = before[1] + v_new
    assert run_once(Momentum(0.5), [(x, c, (x_old,), (v,))]) == (0, BLOCK + 5)
    for got, expected, old in zip((x, c, x_old, v), (c_new, c_new, c_new, v_new), before):
        np.testing.assert_array_equal(got, np.where(keep, expected, old))


def test_center_momentum_fills_in_its_defaults():
    assert CenterMomentum().resolved(4).kernel_args() == (0.9 / 4, 0.9**0.25, 2.7)
    again = CenterMomentum(alpha=0.5, gain=0.2).resolved(4).resolved(9)
    assert again.kernel_args() == (0.5, 0.9 ** (1 / 9), 0.2)
    with pytest.raises(ConfigurationError, match=r"resolved\(N\)"):
        CenterMomentum().kernel_args()


def test_momentum_remembers_as_many_mini_batches_at_shorter_periods():
    assert at_period(CenterMomentum(), 5).resolved(2).momentum == pytest.approx(0.9**0.5)
    assert at_period(CenterMomentum(), 40) == at_period(CenterMomentum(), 10) == CenterMomentum()
    assert at_period(CenterMomentum(momentum=0.3), 1) == CenterMomentum(momentum=0.3)
    assert at_period(EASGD(), 1) == EASGD()


@pytest.mark.parametrize(
    "arguments", [{"alpha": 0}, {"alpha": 1.1}, {"momentum": 1}, {"momentum": -0.1}, {"gain": -1}, {"gain": math.inf}]
)
def test_center_momentum_refuses_what_cannot_work(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ConfigurationError, match=f"got {name}={value!r}"):
        CenterMomentum(**arguments)


moves = st.lists(st.tuples(st.integers(0, 3), st.integers(-8, 8)), max_size=30)


@EXAMPLES
@given(moves=moves, alpha=halves, gain=st.sampled_from([0.0, 1.0, 4.0]))
def test_center_momentum_is_easgd_in_a_moving_frame(moves, alpha, gain):
    """Four workers step and synchronize in any order: x - s_x and c - s are those of EASGD."""
    rule, plain = CenterMomentum(alpha, 0.5, gain).resolved(4), EASGD(alpha)
    center, m, s = (np.zeros(1) for _ in range(3))
    workers = [(np.zeros(1), np.zeros(1)) for _ in range(4)]
    easgd_center, easgd_workers = np.zeros(1), [np.zeros(1) for _ in range(4)]
    for rank, step in moves:
        x, s_x = workers[rank]
        x += step
        easgd_workers[rank] += step
        rule.sync(x, center, (s_x,), (m, s))
        plain.sync(easgd_workers[rank], easgd_center)
    np.testing.assert_allclose(center - s, easgd_center, rtol=1e-9, atol=1e-9)
    for (x, s_x), expected in zip(workers, easgd_workers):
        np.testing.assert_allclose(x - s_x, expected, rtol=1e-9, atol=1e-9)
    if not gain:
        np.testing.assert_array_equal(s, 0)


def test_alone_a_moved_frame_stays_and_momentum_ends_where_the_center_moves():
    x, c = np.array([8.0, 2.0, 0.0, np.nan]), np.array([2.0, 2.0, -0.0, 2.0])
    s_x, m, s = (np.full(4, value) for value in (1.0, 4.0, 1.5))
    Adopt(CenterMomentum()).sync(x, c, (s_x,), (m, s))
    np.testing.assert_array_equal(x, [8, 2, 0, np.nan])
    np.testing.assert_array_equal(c, x)
    np.testing.assert_array_equal(m, [0, 4, 4, 0])
    assert (s_x == 1).all()
    assert (s == 1.5).all()
    assert Adopt(CenterMomentum()).kernel == "adopt"
    (x, c), outer = (np.array([3.0, 1.0]), np.array([1.0, 1.0])), np.array([-5.0, -5.0])
    Adopt(DiLoCo()).sync(x, c, (), (outer,))
    assert outer.tolist() == [0, -5]
    assert Adopt(ASGD()).kernel == "adopt_remembering"


# Rules between hosts.


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


# AveragedEASGD.


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


# Rules of rounds.


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
