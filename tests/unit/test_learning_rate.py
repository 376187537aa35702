"""Learning rates of N workers: values by hand, and NumPy's ramp."""

import math
import pickle

import numpy as np
import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.learning_rate import SCALINGS, Warmup, scale_factor, scaled, scaled_schedule

pytestmark = pytest.mark.base


@pytest.fixture
def nothing_left_behind():
    """Nothing here starts what could stay behind, and the search for it takes longer than these tests."""


@pytest.mark.parametrize(
    ("how", "of_four", "of_two"), [("linear", 0.4, 0.2), ("sqrt", 0.2, 0.1 * 1.4142135623730951), ("none", 0.1, 0.1)]
)
def test_rates_by_hand(how, of_four, of_two):
    assert scaled(0.1, 4, how) == pytest.approx(of_four, rel=1e-15)
    assert scaled(0.1, 2, how) == pytest.approx(of_two, rel=1e-15)
    assert scaled(np.array(0.5), 4, how) == scaled(0.5, 4, how)


@pytest.mark.parametrize("how", SCALINGS)
def test_alone_no_rate_changes(how):
    assert scaled(0.1, 1, how) == 0.1
    warmup = Warmup(0.1, 2, 1, how)
    assert [warmup.at(epochs) for epochs in (0, 0.5, 2)] == [0.1, None, None]


@pytest.mark.parametrize(("how", "factor"), [("linear", 4), ("sqrt", 2)])
def test_the_warmup_is_a_straight_line_from_the_rate_of_one_to_that_of_all(how, factor):
    warmup = Warmup(0.8, 2.5, 4, how)
    epochs = np.arange(0, 2.5, 0.25)
    line = np.interp(epochs, [0, 2.5], [0.8 / factor, 0.8])
    assert [warmup.at(e) for e in epochs] == pytest.approx(line)
    assert not warmup.finished
    assert warmup.at(2.6) == pytest.approx(0.8)
    assert warmup.finished
    assert warmup.at(2.7) is None


def test_a_warmup_goes_on_where_it_is_and_from_a_pickle():
    warmup = Warmup(0.8, 4, 2)
    assert warmup.at(1) == pytest.approx(0.5)
    again = pickle.loads(pickle.dumps(warmup))
    assert again.at(2) == pytest.approx(0.6)
    assert again.at(4) == pytest.approx(0.8)
    assert pickle.loads(pickle.dumps(again)).at(5) is None
    assert Warmup(0.8, 4, 2).at(7) == pytest.approx(0.8)


def test_a_schedule_counts_the_steps_of_all_workers():
    scaled_exp = scaled_schedule(math.exp, 3)
    assert [scaled_exp(k) for k in (0, 1, 2)] == [1.0, math.exp(3), math.exp(6)]
    assert pickle.loads(pickle.dumps(scaled_exp))(2) == math.exp(6)
    np.testing.assert_array_equal(scaled_schedule(np.sqrt, 2)(np.arange(3)), np.sqrt([0, 2, 4]))
    assert scaled_schedule(math.exp, 1) is math.exp


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: scale_factor(2, "cubic"), "linear, sqrt, none"),
        (lambda: scale_factor(0), "at least 1"),
        (lambda: scaled("0.1", 2), "pass a finite number"),
        (lambda: scaled(math.inf, 2), "pass a finite number"),
        (lambda: scaled(math.exp, 2), "pass a finite number"),
        (lambda: scaled(np.ones(2), 2), "pass a finite number"),
        (lambda: Warmup(0.0, 5, 2), "greater than 0"),
        (lambda: Warmup(0.1, 0, 2), "greater than 0"),
        (lambda: Warmup(0.1, math.nan, 2), "greater than 0"),
        (lambda: Warmup(0.1, 5, 2, "square"), "linear, sqrt, none"),
        (lambda: scaled_schedule(0.1, 2), "scale_learning_rate"),
        (lambda: scaled_schedule(scaled_schedule(math.exp, 2), 2), "scale it only once"),
    ],
)
def test_bad_arguments_are_refused(call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call()
