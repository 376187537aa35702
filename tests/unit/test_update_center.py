"""Functions that change the whole center, and rules of the original whose alpha changes."""

import numpy as np
import pytest
from plain_variable import Variable

from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, NonFiniteError
from platoon_base.platoon_api.param_sync import ASGD, EASGD, ParamSyncRule
from platoon_base.rules import EASGD as OWN_EASGD
from platoon_base.worker.connection import AdvisoryLock

pytestmark = pytest.mark.base


@pytest.fixture
def shared(job_of_one):
    """A worker that shares two parameters, and these."""
    params = [np.arange(6, dtype="f4").reshape(2, 3), np.zeros(5)]
    job_of_one.init_shared_params(params, OWN_EASGD(0.5))
    return job_of_one, params


def test_a_function_changes_the_center_that_all_see(shared):
    worker, _ = shared

    def swap_signs(center):
        center[0] *= -1
        center[1][...] = center[0].sum()

    worker.update_center(swap_signs)
    w, b = worker.center_arrays
    np.testing.assert_array_equal(w, -np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(b, -15)
    assert (w.dtype, b.dtype) == ("float32", "float64")


@pytest.mark.parametrize(
    ("update", "error", "text"),
    [
        (lambda center: center[1].fill(np.nan), NonFiniteError, "parameter 1 of the center would get a NaN"),
        (lambda center: center[0].fill(np.inf), NonFiniteError, "parameter 0 of the center would get a NaN"),
        (lambda center: center.pop(), ValueError, "got 1 arrays for 2 shared parameters"),
        (lambda center: (center[0].fill(7), 1 / 0), ZeroDivisionError, "division by zero"),
    ],
)
def test_an_update_that_fails_leaves_the_center_as_it_was(shared, update, error, text):
    worker, params = shared
    with pytest.raises(error, match=text):
        worker.update_center(update)
    for center, param in zip(worker.center_arrays, params):
        np.testing.assert_array_equal(center, param)


def test_it_waits_for_the_advisory_lock_unless_told_otherwise(shared, monkeypatch):
    worker, _ = shared
    taken = []

    def acquire(lock, timeout_s):
        taken.append(timeout_s)
        raise CollectiveTimeoutError("another worker held the lock")

    monkeypatch.setattr(AdvisoryLock, "acquire", acquire)
    with pytest.raises(CollectiveTimeoutError):
        worker.update_center(lambda center: center[0].fill(1), timeout_s=0.5)
    assert 0 < taken[0] <= 0.5
    worker.update_center(lambda center: center[0].fill(1), synchronous=False)
    assert (worker.center_arrays[0] == 1).all()


def test_a_new_alpha_holds_from_the_next_synchronization_on(job_of_one):
    param, rule = np.array([8.0]), EASGD(0.5)
    job_of_one.init_shared_params([param], rule)
    param += 8
    job_of_one.sync_params()
    assert (param[0], job_of_one.center_arrays[0][0]) == (12, 12)
    rule.set_alpha(0.25)
    assert rule.get_alpha() == rule.alpha == 0.25
    param += 8
    job_of_one.sync_params()
    assert (param[0], job_of_one.center_arrays[0][0]) == (18, 14)
    with pytest.raises(ConfigurationError, match="alpha=2"):
        rule.alpha = 2


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (EASGD(0.5), [(2.0, 2.0), (4.0, 4.0)]),  # d = (4 - 0) / 2; then 6 and 2 meet
        (ASGD(), [(4.0, 4.0), (8.0, 8.0)]),  # 0 + (4 - 0); then 4 + (8 - 4)
    ],
)
def test_a_rule_of_the_original_makes_an_update_function(rule, expected):
    """By hand: the parameter is 0, the center 0; before each update the worker adds 4."""
    params, masters = [Variable("w", np.zeros(1)), Variable("w", np.zeros(2))], [np.zeros(1), np.zeros(2)]
    update = rule.make_update_function(params)
    for local, center in expected:
        for param in params:
            param.value += 4
        update(masters)
        for param, master in zip(params, masters):
            np.testing.assert_array_equal(param.value, local)
            np.testing.assert_array_equal(master, center)


class ByHand(ParamSyncRule):
    def update_params(self, local_values, master_values):
        for local, master in zip(local_values, master_values):
            difference = 0.5 * (local - master)
            local -= difference
            master += difference


@pytest.mark.parametrize("rule", [ByHand(), EASGD(0.5)])
def test_an_update_function_takes_arrays_as_parameters_too(rule):
    params, masters = [np.full(2, 4.0), np.full((), 8.0)], [np.zeros(2), np.zeros(())]
    rule.make_update_function(params)(masters)
    assert [float(values.sum()) for values in (*params, *masters)] == [4.0, 4.0, 4.0, 4.0]


def test_what_a_rule_remembers_follows_the_center_that_the_parameters_took_over():
    """A worker that comes to a center of 10 adds its own step of 1, not the 10 as well."""
    params, masters, rule = [Variable("w", np.zeros(1))], [np.full(1, 10.0)], ASGD()
    update = rule.make_update_function(params)
    params[0].value[:] = 10
    rule.took_center_over()
    params[0].value += 1
    update(masters)
    np.testing.assert_array_equal(masters[0], 11)
