"""Weighted averages of arrays of the host, against NumPy: ranks are threads, links are real."""

import functools
import math

import numpy as np
import pytest
from hosts_here import HostsGroup

from platoon_base.collectives.weighted import MIN_WEIGHT, Header, HostAverage, unit_of

pytestmark = pytest.mark.base

TIMEOUT_S = 60
WORKERS = (2, 1)  # ranks on each host
DTYPES = ["f4", "f8", "f2", "f4"]
SHAPES = [(3, 5), (7,), (4,), (300, 300)]  # The last one is sent in a call of its own.


def values_of(rank, step=0):
    random = np.random.default_rng([rank, step])
    return [random.standard_normal(shape).astype(dtype) for shape, dtype in zip(SHAPES, DTYPES)]


class Patient:
    def why_absent(self, ranks):
        return ""

    def moved(self, ranks):
        return -math.inf


def group_of(codec="none"):
    return HostsGroup(WORKERS, None, [Patient()] * sum(WORKERS), compression=codec)


class Averages:
    """An average of each rank, with the unit and the residuals of its steps."""

    def __init__(self, group, compresses=False):
        self.group = group
        size = len(group.members)
        self.of = {
            member.rank: HostAverage(
                functools.partial(member.all_reduce, timeout_s=TIMEOUT_S), member.rank, size, compresses
            )
            for member in group.members
        }

    def __call__(self, values, weights, is_sum=False, in_place=True):
        """Return the averages and the header of each rank; ``values(rank)`` are its own."""

        def call(member):
            ins = values(member.rank)
            outs = ins if in_place else [np.full_like(array, 7) for array in ins]
            mine, everyones = Header(len(weights), len(ins)), Header(len(weights), len(ins))
            mine.used[:] = weights[member.rank] > 0
            self.of[member.rank](ins, outs, weights[member.rank], mine, everyones, is_sum=is_sum)
            return outs, everyones

        return self.group.run(call)


def require_equal_bits(found):
    for arrays in zip(*(outs for outs, _ in found)):
        assert len({array.tobytes() for array in arrays}) == 1


@pytest.fixture
def group():
    with group_of() as group:
        yield group


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("weights", [(20, 20, 20), (20, 20, 7), (0, 20, 7), (0, 0, 0.25), (3e4, 1, 1), (0, 0, 0)])
def test_averages_are_those_of_one_process(group, weights, in_place):
    """With 64 bits to their own precision, since the weights of all are known exactly."""
    averages = Averages(group)
    for step in range(2):  # The second one has the unit of the first.
        found = averages(functools.partial(values_of, step=step), weights, in_place=in_place)
        require_equal_bits(found)
        outs, header = found[0]
        assert header.weights.tolist() == list(weights)
        assert header.used.tolist() == [np.count_nonzero(weights)] * len(SHAPES)
        for i, out in enumerate(outs):
            each = np.array([values_of(rank, step)[i] for rank in range(3)], "f8")
            exact = np.average(each, axis=0, weights=weights) if any(weights) else np.zeros(SHAPES[i])
            eps = 4 * np.finfo(out.dtype).eps
            np.testing.assert_allclose(out, exact, rtol=eps, atol=eps * np.abs(each).max())


def test_sums_ignore_weights(group):
    found = Averages(group)(values_of, (1, 1, 1), is_sum=True)
    require_equal_bits(found)
    for i, out in enumerate(found[0][0]):
        exact = np.sum([values_of(rank)[i] for rank in range(3)], axis=0, dtype="f8")
        np.testing.assert_allclose(out, exact, atol=8 * np.finfo(out.dtype).eps * np.abs(exact).max())


@pytest.mark.parametrize("compresses", [False, True])
def test_values_that_are_not_finite_reach_all_unless_their_weight_is_zero(compresses):
    def values(rank):
        return [np.array([1, 2, [np.nan, np.inf][rank % 2] if rank else 3], dtype) for dtype in ("f2", "f4", "f8")]

    with group_of("int8" if compresses else "none") as group:
        averages = Averages(group, compresses)
        for outs, _ in averages(values, (4, 0, 0)):
            assert [out.tolist() for out in outs] == [[1, 2, 3]] * 3
        for outs, _ in averages(values, (4, 1, 0)):
            assert [out[2] for out in outs] == [np.inf] * 3
        found = averages(values, (4, 1, 1))
        require_equal_bits(found)
        assert all(np.isnan(out[2]) for outs, _ in found for out in outs)


def test_weights_next_to_nothing_leave_half_precision_finite(group):
    averages = Averages(group)
    for weights, expected in [((5, 5, 5), 2), ((MIN_WEIGHT,) * 3, 0), ((100, 0, 300), 2.5)]:
        for outs, _ in averages(lambda rank: [np.full(3, 1 + rank, "f2"), np.zeros(2, "f2")], weights):
            np.testing.assert_allclose(outs[0], expected, atol=2e-3)
            assert outs[1].tolist() == [0, 0]


def test_a_step_that_no_worker_has_leaves_residuals():
    """Its result is dropped; so would be what the residuals add to it."""
    with group_of("int2") as group:
        averages = Averages(group, compresses=True)
        big = [np.random.default_rng(rank).standard_normal(100_000).astype("f4") for rank in range(3)]
        found = averages(lambda rank: [big[rank].copy()], (1, 2, 1))
        require_equal_bits(found)
        for outs, _ in averages(lambda rank: [np.full(100_000, np.nan, "f4")], (0, 0, 0)):
            assert not outs[0].any()
        again = averages(lambda rank: [np.zeros(100_000, "f4")], (1, 2, 1))
        require_equal_bits(again)
        exact = np.average(big, axis=0, weights=(1, 2, 1))
        together = found[0][0][0] + again[0][0][0]
        assert np.abs(together - exact).mean() < 0.9 * np.abs(found[0][0][0] - exact).mean()


def test_the_unit_is_the_largest_weight_that_is_not_tiny():
    assert unit_of([3, 20, 7], 5.0) == 20
    assert unit_of(np.array([MIN_WEIGHT, 0], "f4"), 5.0) == 5
