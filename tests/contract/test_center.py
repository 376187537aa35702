"""The contract of a center, on posix shared memory: values by hand, stripes, locks, many processes at once."""

import contextlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from comparing import require_close, require_equal
from interrupting import at_instruction
from scripts_here import script_path

from platoon_base.centers import stripes
from platoon_base.centers.base import NonFiniteElement
from platoon_base.centers.host import STRIPE_BYTES, HostCenters
from platoon_base.errors import CollectiveTimeoutError, LayoutMismatchError
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout
from platoon_base.rules import ASGD, EASGD, CenterMomentum
from platoon_base.shm.segments import Segment

pytestmark = pytest.mark.base

SHAPES = [(3, 5), (STRIPE_BYTES // 4 + 17,), (), (700_000,)]


def model(seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape), dtype=dtype) for shape in SHAPES]


@pytest.fixture(params=[HostCenters])
def centers(request):
    factory = request.param(f"{segment_prefix()}test{os.getpid()}-center", workers=3)
    yield factory
    Segment.unlink(factory.name)


@pytest.fixture
def pair(centers):
    opened = []

    def open_pair(rule, values):
        layout = Layout.of(values)
        opened.append(centers.create(layout, rule, 0))
        opened[0].fill(values, [])
        opened.append(centers.attach(layout, rule, 1))
        opened[1].read([np.empty_like(value) for value in values], True, 10, begin=True)
        return opened

    yield open_pair
    for center in opened:
        center.close()


def values_of(center, like, **options):
    read = [np.empty_like(a) for a in like]
    center.read(read, True, 10, **options)
    return read


@pytest.mark.parametrize(("dtype", "locked"), [("float32", True), ("float64", False), ("float16", True)])
def test_easgd_is_its_equations(pair, dtype, locked):
    first, second = model(0, dtype), model(1, dtype)
    start = model(2, dtype)
    centers = pair(EASGD(0.3), start)
    expected_center = [c.copy() for c in start]
    for handle, x in zip(centers, (first, second)):
        expected_x = [a.copy() for a in x]
        for a, c in zip(expected_x, expected_center):
            d = a.dtype.type(0.3) * (a - c)
            a -= d
            c += d
        assert handle.sync(EASGD(0.3), x, locked, 10) is None
        require_equal(x, expected_x)
    read = [np.empty_like(a) for a in start]
    centers[0].read(read, locked, 10)
    require_equal(read, expected_center)


def test_asgd_adds_the_progress_of_both(pair):
    start = model(0)
    one, two = pair(ASGD(), start)
    x, y = ([a.copy() for a in start] for _ in range(2))
    for a, b in zip(x, y):
        a += 1
        b += 2
    one.sync(ASGD(), x, True, 10)
    two.sync(ASGD(), y, True, 10)
    one.sync(ASGD(), x, True, 10)
    for a, b, s in zip(x, y, start):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, s + 3, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_center_momentum_carries_the_workers_along(pair, dtype):
    """Two workers in turn, against the equations on whole arrays; one that attaches later starts where the frame is."""
    rule = CenterMomentum().resolved(2)
    start = model(2, dtype)
    centers = pair(rule, start)
    workers = [model(seed, dtype) for seed in (0, 1)]
    c, m, s = [a.copy() for a in start], [np.zeros_like(a) for a in start], [np.zeros_like(a) for a in start]
    expected = [([a.copy() for a in x], [np.zeros_like(a) for a in x]) for x in workers]
    for turn in (0, 1, 1, 0, 1):
        x, s_x = expected[turn]
        for arrays in zip(x, c, s_x, m, s):
            rule.sync(*arrays[:2], arrays[2:3], arrays[3:])
        assert centers[turn].sync(rule, workers[turn], True, 10) is None
    found = [*values_of(centers[0], start), *workers[0], *workers[1]]
    require_equal(found, [*c, *expected[0][0], *expected[1][0]])
    for got, want in zip(centers[0].states, (m, s)):
        require_equal(got, want)
    read = values_of(centers[0], start, begin=True)
    centers[0].sync(rule, read, True, 10)  # at the center, and on its frame: there is no pull, and none to ride after
    for got, center, momentum in zip(read, c, m):
        _, decay, gain = (a.dtype.type(value) for a in (got,) for value in rule.kernel_args())
        np.testing.assert_array_equal(got, center + gain * (decay * momentum))


def test_momentum_ends_where_other_values_are_put_into_the_center(pair):
    """What the workers have gone along with stays: they would go back otherwise. The same values change nothing."""
    rule = CenterMomentum().resolved(2)
    one, two = pair(rule, model(2))
    x = model(0)
    one.sync(rule, x, True, 10)
    m, s = ([a.copy() for a in state] for state in one.states)
    same = values_of(one, x)
    two.write(same, True, 10)
    require_equal([*one.states[0], *one.states[1]], [*m, *s])
    others = [a.copy() for a in same]
    others[0][1, 2] += 1
    others[3][600_000:] = 0
    two.write(others, True, 10)
    for momentum, before, value, other in zip(one.states[0], m, same, others):
        np.testing.assert_array_equal(momentum, np.where(value == other, before, 0))
    require_equal(one.states[1], s)


def test_a_center_is_filled_with_values_and_states(centers):
    """Whoever fills it, or attaches to it, sits at it in the moved frame: it goes on by its momentum alone."""
    rule = CenterMomentum().resolved(2)
    start, m, s = model(0, "float64"), model(1, "float64"), model(2, "float64")
    one = centers.create(Layout.of(start), rule, 0)
    one.fill(start, [m, s])
    two = centers.attach(Layout.of(start), rule, 1)
    try:
        values, states = two.snapshot()
        require_equal([*values, *states[0], *states[1]], [*start, *m, *s])
        x, y = [a.copy() for a in start], values_of(two, start, begin=True)
        _, decay, gain = rule.kernel_args()
        one.sync(rule, x, True, 10)
        for got, center, momentum in zip(x, start, m):
            np.testing.assert_array_equal(got, center + gain * (decay * momentum))
        two.sync(rule, y, True, 10)  # it makes up for that move first
        for got, center, momentum in zip(y, x, m):
            np.testing.assert_allclose(got, center + gain * (decay**2 * momentum), rtol=0, atol=1e-12)
    finally:
        one.close()
        two.close()


@contextlib.contextmanager
def after_each_stripe(monkeypatch, do):
    """Do something whenever a visit has freed a stripe; yields the list of what it returned."""
    done, free = [], Segment.unlock

    def and_then_do(segment, *byte):
        free(segment, *byte)
        with monkeypatch.context() as plain:
            plain.setattr(Segment, "unlock", free)
            done.append(do())

    with monkeypatch.context() as watched:
        watched.setattr(Segment, "unlock", and_then_do)
        yield done


def test_values_and_frame_are_written_at_one_moment(pair, monkeypatch):
    """One puts the center's own values there; right behind it, another moves the center by its momentum."""
    rule = CenterMomentum().resolved(2)
    one, two = pair(rule, [np.zeros(7)])
    one.sync(rule, [np.arange(7.0)], True, 10)  # which gives the center momentum
    sits = values_of(one, [np.empty(7)], begin=True)
    values = [sits[0].copy()]
    with after_each_stripe(monkeypatch, lambda: one.sync(rule, sits, True, 10)) as moves:
        two.write(values, True, 10)
    assert len(moves) == 1
    assert (sits[0][1:] != values[0][1:]).all()
    two.sync(rule, values, True, 10)  # it rides along, and there is no pull
    np.testing.assert_allclose(values[0], values_of(two, values)[0], rtol=0, atol=1e-12)


def test_values_and_frame_are_read_at_one_moment(pair, monkeypatch):
    """While one reads, another that sits at the center moves it on by its momentum: the reader sits at it then, too."""
    rule = CenterMomentum().resolved(2)
    one, two = pair(rule, model(2, "float64"))
    one.sync(rule, model(0, "float64"), True, 10)  # which gives the center momentum
    sits, taken = values_of(one, model(0, "float64"), begin=True), model(1, "float64")
    with after_each_stripe(monkeypatch, lambda: one.sync(rule, sits, True, 10)) as moves:
        two.read(taken, True, 10, begin=True)
    assert len(moves) > 1
    two.sync(rule, taken, True, 10)  # it rides along, and there is no pull
    require_close(taken, values_of(two, taken), rtol=0, atol=1e-12)


def test_a_block_that_is_not_finite_stays_out_and_is_told(pair):
    start = model(0)
    center, _ = pair(EASGD(0.5), start)
    x = [np.asarray(a + 1, a.dtype) for a in start]
    x[3][200_000] = np.nan
    x[3][7] = np.inf
    assert center.sync(EASGD(0.5), x, True, 10) == NonFiniteElement(parameter=3, element=7)
    read = values_of(center, start)
    assert all(np.isfinite(a).all() for a in read)
    for got, begun, value in zip(read, start, x):
        bad = ~np.isfinite(value)
        np.testing.assert_array_equal(got[bad], begun[bad])
        np.testing.assert_array_equal(got[~bad], (begun + np.float32(0.5) * (begun + 1 - begun))[~bad])


def ctrl_c():
    raise KeyboardInterrupt


def test_ctrl_c_at_any_instruction_leaves_no_stripe_locked(centers):
    values = [np.zeros(3, "float32")]
    layout, rule, instruction = Layout.of(values), EASGD(0.5), 0
    center = centers.create(layout, rule, 0)
    other = centers.attach(layout, rule, 1)
    interrupted = True
    while interrupted:
        instruction, interrupted = instruction + 1, False
        try:
            at_instruction(instruction, lambda: center.sync(rule, values, True, 10), ctrl_c)
        except KeyboardInterrupt:
            interrupted = True
        other.sync(rule, values, True, 0)  # or it raises: a stripe is taken
        assert other.locks.holder(0) is None
    assert instruction > 100
    center.close()
    other.close()


@pytest.mark.parametrize("rule", [EASGD(0.5), ASGD()])
def test_the_first_element_is_named_whichever_stripe_is_visited_first(centers, rule):
    params = [np.zeros(600_000), np.zeros(600_000)]  # five stripes
    layout = Layout.of(params)
    made = centers.create(layout, rule, 0)
    params[0][[70_000, 590_000]] = np.nan
    params[1][[3, 599_999]] = np.inf
    for rank in range(8):  # each begins at another stripe
        center = centers.attach(layout, rule, rank)
        told = center.sync(rule, params, True, 10)
        center.close()
        assert told == NonFiniteElement(parameter=0, element=70_000), rank
    made.close()


def meanwhile(do):
    """Return EASGD that does something else while it holds the first stripe that it visits."""
    todo = [do]

    class Dawdler(EASGD):
        kernel = None

        def sync(self, *arrays):
            if todo:
                todo.pop()()
            super().sync(*arrays)

    return Dawdler(0.5)


def test_a_stripe_that_is_held_is_passed_over_and_waited_for(pair):
    center, other = pair(EASGD(0.5), model(0))
    x = model(1)

    def try_in_vain():
        assert [center.locks.holder(stripe) for stripe in range(3)].count(1) == 1
        with pytest.raises(CollectiveTimeoutError, match="rank 1"):
            center.sync(EASGD(0.5), x, True, 0.05)

    other.sync(meanwhile(try_in_vain), model(0), True, 10)
    changed = np.concatenate([np.ravel(a != b) for a, b in zip(x, model(1))])
    assert 0.3 < changed.mean() < 0.9, "the stripes that were free, and they alone, are updated"
    assert [center.locks.holder(stripe) for stripe in range(3)] == [None] * 3
    assert center.sync(EASGD(0.5), x, True, 10) is None


def test_who_leaves_a_stripe_out_has_not_reached_the_whole_center(pair, monkeypatch):
    center, other = pair(EASGD(0.5), model(0))
    x = model(1)
    monkeypatch.setattr(stripes, "timeout", {"stripe": 0.05}.get)
    other.sync(meanwhile(lambda: center.sync(EASGD(0.5), x, True, 10)), model(0), True, 10)
    assert not center.whole
    # Another worker has visited it since, so it is waited for.
    monkeypatch.setattr(stripes, "timeout", {"stripe": 10}.get)
    syncing = threading.Thread(target=center.sync, args=(EASGD(0.5), x, True, 20))
    other.sync(meanwhile(lambda: (syncing.start(), syncing.join(0.3))), model(0), True, 10)
    syncing.join()
    assert center.whole


def test_another_layout_is_refused(centers):
    layout = Layout.of(model(0))
    center = centers.create(layout, EASGD(0.5), 0)
    try:
        for other in (
            Layout.of(model(0)[:2]),
            Layout.of(model(0), ["a", "b", "c", "d"]),
            Layout.of(model(0, "float64")),
        ):
            with pytest.raises(LayoutMismatchError, match="another model"):
                centers.attach(other, EASGD(0.5), 1)
        centers.attach(layout, EASGD(0.5), 1).close()
    finally:
        center.close()


@pytest.mark.parametrize("kernels", ["fused", "numpy"])
def test_processes_at_once_lose_no_update(centers, kernels):
    """Each of three processes adds 1 to every element, 30 times, against the other two."""
    n = 3 * STRIPE_BYTES // 4 + 1001
    layout = Layout.of([np.zeros(n, "float32")])
    center = centers.create(layout, ASGD(), 0)
    code = script_path("center_processes_at_once_lose_no_update")
    environment = dict(os.environ, **({"PLATOON_NO_KERNELS": "1"} if kernels == "numpy" else {}))
    workers = [
        subprocess.Popen(
            [sys.executable, code, centers.name, str(rank), str(n)],
            stdin=subprocess.PIPE,
            env=environment,
        )
        for rank in (1, 2, 3)
    ]
    for worker in workers:
        worker.stdin.write(b"\n")
        worker.stdin.close()
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    np.testing.assert_array_equal(values_of(center, [np.empty(n, "float32")])[0], 90)
    center.close()
