"""A center with an average of itself, and with moments that have a rule of their own: values by hand."""

import os

import numpy as np
import pytest
from comparing import require_equal

from platoon_base.centers.host import STRIPE_BYTES, HostCenters
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout
from platoon_base.rules import Adopt, AveragedEASGD
from platoon_base.shm.segments import Segment

pytestmark = pytest.mark.base

SHAPES = [(3, 5), (STRIPE_BYTES // 4 + 17,), (7,), (STRIPE_BYTES // 4 + 3,)]  # the last two are moments
RULE = AveragedEASGD(scale=1.5, warmup=4).resolved(4)


def arrays(seed):
    return [np.random.default_rng(seed + i).random(shape, "float32") for i, shape in enumerate(SHAPES)]


@pytest.fixture
def pair():
    factory = HostCenters(f"{segment_prefix()}test{os.getpid()}-averaged", workers=3)
    layout, start = Layout.of(arrays(0), moments=2), arrays(0)
    opened = [factory.create(layout, RULE, 0)]
    opened[0].fill(start, [])
    opened.append(factory.attach(layout, RULE, 1))
    opened[1].read([np.empty_like(value) for value in start], True, 10, begin=True)
    yield opened
    for center in opened:
        center.close()
    Segment.unlink(factory.name)


def averages(center):
    found = arrays(0)
    center.read(found, True, 10, averaged=True)
    return found


def centers(center):
    found = arrays(0)
    center.read(found, True, 10)
    return found


def test_parameters_and_moments_follow_their_equations(pair):
    c, a = arrays(0), arrays(0)
    old = [arrays(0), arrays(0)]
    for count, rank in enumerate([0, 1, 1, 0, 1, 0], start=1):
        x, number = arrays(10 * count), np.float32
        given = [value.copy() for value in x]
        assert pair[rank].sync(RULE.at_count(count), x, True, 10) is None
        more, pull, alpha = number((1.5 * 2 - 1) * min(1, count / 4)), number(0.5), number(0.9 / 4)
        weight = number(17 / (4 * (count + 16)))
        for i in (0, 1):
            scaled = given[i] + more * (given[i] - old[rank][i])
            e = scaled - c[i]
            scaled, c[i] = scaled - pull * e, c[i] + alpha * e
            a[i] = a[i] + weight * (c[i] - a[i])
            old[rank][i] = scaled
            np.testing.assert_array_equal(x[i], scaled)
        for i in (2, 3):
            d = alpha * (given[i] - c[i])
            c[i] = a[i] = c[i] + d
            np.testing.assert_array_equal(x[i], given[i] - d)
        for found, expected in ((centers(pair[1 - rank]), c), (averages(pair[1 - rank]), a)):
            require_equal(found, expected)


def test_the_average_begins_with_the_center_and_is_overwritten_with_it(pair):
    require_equal(averages(pair[1]), arrays(0))
    pair[0].sync(RULE.at_count(1), arrays(5), True, 10)
    pair[1].write(arrays(7), True, 10)
    for found in (centers(pair[0]), averages(pair[0])):
        require_equal(found, arrays(7))


def test_a_worker_alone_trains_as_the_plain_script_does(pair):
    pair[1].sync(RULE.at_count(1), arrays(3), True, 10)
    x = arrays(5)
    assert pair[0].sync(Adopt(RULE), x, True, 10) is None
    for found in (x, centers(pair[1]), averages(pair[1])):
        require_equal(found, arrays(5))
    # Its next steps, once another has joined, are counted from here.
    x = arrays(6)
    pair[0].sync(RULE.at_count(4), x, True, 10)
    scaled = arrays(6)[0] + np.float32(2) * (arrays(6)[0] - arrays(5)[0])
    np.testing.assert_array_equal(x[0], scaled - np.float32(0.5) * (scaled - arrays(5)[0]))


def test_a_checkpoint_has_the_average(pair):
    pair[0].sync(RULE.at_count(1), arrays(5), True, 10)
    values, states = pair[0].snapshot()
    factory = HostCenters(f"{segment_prefix()}test{os.getpid()}-resumed", workers=3)
    resumed = factory.create(Layout.of(values, moments=2), RULE, 0)
    try:
        resumed.fill(values, states)
        for before, after in ((centers(pair[0]), centers(resumed)), (averages(pair[0]), averages(resumed))):
            require_equal(after, before)
        assert any((a != c).any() for a, c in zip(averages(resumed), centers(resumed)))
    finally:
        resumed.close()
        Segment.unlink(factory.name)
