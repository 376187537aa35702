"""The rules against values by hand, their invariants, and what every rule of a user's own may rely on."""

import dataclasses
import math
import re
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon_base.centers.host_kernels import BLOCK, apply
from platoon_base.errors import ConfigurationError
from platoon_base.rules import ASGD, EAMSGD, EASGD, Adopt, CenterMomentum, DiLoCo, Rule, at_period, require_rule

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
    assert apply(Momentum(0.5), [(x, c, (x_old,), (v,))]) == (0, BLOCK + 5)
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
