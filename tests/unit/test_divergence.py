"""The warnings about training that diverges: told once, and never where training is sound."""

import logging
import math

import numpy as np
import pytest

from platoon_base.rules import EASGD, CenterMomentum, DiLoCo, LocalSGD
from platoon_base.worker.divergence import DivergenceWatch, LossWatch

pytestmark = pytest.mark.base

LARGE = 30.0  # of the weights that training leads to; the watch leaves those below 10 alone
TINY = 1e-9


@pytest.fixture
def told(caplog):
    """Return a function that lists the messages of the watch so far."""
    logger = DivergenceWatch.__module__
    with caplog.at_level(logging.WARNING, logger):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == logger]


def descend(worker, rule, rate, rounds):
    """Minimize |x|^2 / 2 from x = 1, with four steps to a synchronization."""
    x = np.ones((3, 50))
    worker.init_shared_params([x, np.ones(()), np.ones((0, 3))], rule, on_nonfinite="skip")
    with np.errstate(all="ignore"):
        for _ in range(rounds):
            for _ in range(4):
                x -= rate * x + TINY
            worker.sync_params()


def grow(sizes, rule=None, every_s=0.0):
    """Show parameters of these sizes, one after the other, to a watch."""
    watch = DivergenceWatch(3, every_s)
    for size in sizes:
        arrays = [np.full(shape, size, "float32") for shape in ((), (70, 128), (0, 3), (9,))]
        watch.before_sync(arrays, rule or EASGD(0.5))
        watch.after_sync(arrays, rule or EASGD(0.5))


def learn(rates, start=TINY):
    """Fit two workers to noisy targets by CenterMomentum, ten steps to a synchronization; the watch is the first's."""
    rng, rule, watch = np.random.default_rng(0), CenterMomentum().resolved(2), DivergenceWatch(0)
    target = LARGE * rng.standard_normal(2000)
    c = start * rng.standard_normal(target.size)
    m, s = np.zeros_like(c), np.zeros_like(c)
    workers = [(c.copy(), np.zeros_like(c)) for _ in range(2)]
    for rate in rates:
        for number, (x, s_x) in enumerate(workers):
            for _ in range(10):
                x -= rate * (x - target + rng.standard_normal(target.size))
            if not number:
                watch.before_sync([x], rule)
            rule.sync(x, c, (s_x,), (m, s))
            if not number:
                watch.after_sync([x], rule)
    return c, target


def rounds_of(rule, rounds=60, rate=0.3, noise=1.0):
    """Two workers on noisy quadratics, each round a step of gradient descent; the watch of the first."""
    rng = np.random.default_rng(0)
    watch = DivergenceWatch(rank=3)
    c = np.full(5000, 1.0)
    states = tuple(np.zeros_like(c) for _ in rule.center_state)
    for _ in range(rounds):
        learned = [c - rate * (c + noise * rng.standard_normal(c.size)) for _ in range(2)]
        watch.before_sync([learned[0]], rule)
        rule.step(np.mean(learned, axis=0) - c, c, states, 1.0)
        watch.after_sync([c], rule)


# Growth.


@pytest.mark.parametrize("rule", [DiLoCo(outer_lr=3.0, momentum=0.95), DiLoCo(outer_lr=20.0, momentum=0.0)], ids=str)
def test_an_outer_step_that_is_too_large_is_told_once(job_of_one, told, rule):
    descend(job_of_one, rule, 0.3, 60)
    (message,) = (message for message in told() if "may diverge" in message)
    assert "rank 0" in message
    assert repr(rule) in message
    assert "lower gain, outer_lr or momentum" in message


@pytest.mark.parametrize("rule", [CenterMomentum(), EASGD(), DiLoCo(), DiLoCo(0.7, 0.9)], ids=str)
def test_sound_training_is_left_alone(job_of_one, told, rule):
    descend(job_of_one, rule, 0.05, 200)
    assert not told()


@pytest.mark.parametrize(
    "sizes",
    [
        range(100),
        [t**2 for t in range(100)],
        [math.sqrt(t) * 100 for t in range(100)],
        [0.01] * 50 + [0.9] * 50,
        [0.3] * 40 + [20.0] * 4 + [0.3] * 40,
        [50.0] * 40 + [0.01] * 40 + [50.0] * 40,
        [1.0] * 40 + [math.nan] * 40,
        [0.0] * 100,
    ],
    ids=["t", "t^2", "root of t", "small", "for a moment", "again", "NaN", "zero"],
)
def test_other_growth_is_none(told, sizes):
    grow(sizes)
    assert not told()


SCHEDULES = {
    "constant": [0.05] * 200,
    "warm-up": [0.1 * min(1, t / 60) for t in range(200)],
    "drops": [0.1 if t < 60 else 0.01 if t < 120 else 0.001 for t in range(200)],
    "restarts": [0.05 * (1 + math.cos(math.pi * (t % 50) / 50)) for t in range(200)],
    "down and up": [0.1 if not 40 < t < 90 else 1e-6 for t in range(200)],
    "up and down": [0.15 * (1 - abs(t / 100 - 1)) for t in range(200)],
}


@pytest.mark.parametrize("rates", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_a_schedule_of_the_learning_rate_is_no_divergence(told, rates):
    c, target = learn(rates)
    assert np.abs(c - target).mean() < 3
    assert not told()


def test_all_columns_are_looked_at(told):
    """Growth in one column of four of a matrix, the widths of which are powers of two."""
    watch, x = DivergenceWatch(0), np.full((512, 256), 0.1)
    for t in range(60):
        x[:, 3::4] = 0.1 * 1.5**t
        watch.after_sync([x], EASGD(0.5))
    assert len(told()) == 1


@pytest.mark.parametrize(("every_s", "messages"), [(3600.0, 0), (1e-9, 1)])
def test_looks_may_be_seldom(told, every_s, messages):
    """As on devices; an hour is longer than this test."""
    grow([1.2**t for t in range(60)], every_s=every_s)
    assert len(told()) == messages


class OnDevice:
    """An array whose copies record that they are read, as that waits for the device."""

    def __init__(self, values, reads, is_copy=False):
        self.values, self.reads, self.is_copy, self.size = values, reads, is_copy, values.size

    def reshape(self, shape):
        return OnDevice(self.values.reshape(shape), self.reads)

    def __getitem__(self, key):
        return OnDevice(self.values[key], self.reads)

    def copy(self):
        return OnDevice(self.values.copy(), self.reads, is_copy=True)

    def __array__(self, dtype=None, copy=None):
        assert self.is_copy  # the array itself may have changed meanwhile
        self.reads.append(float(self.values[0]))
        return self.values


def test_a_sample_on_a_device_is_read_when_the_next_one_is_taken():
    """The host does not wait for the work that is queued, nor for a synchronization that is made later."""
    watch, reads = DivergenceWatch(0, every_s=1e-9), []
    for number in range(4):
        array = OnDevice(np.full(50, float(number)), reads)
        watch.before_sync([array], EASGD(0.5))
        watch.after_sync([array], EASGD(0.5))
        assert reads == [*range(number)]


# Momentum, by rules that wait.


@pytest.mark.parametrize("rule", [LocalSGD(), DiLoCo(), DiLoCo(0.7, 0.9)], ids=str)
def test_what_pays_is_not_warned_about(rule, told):
    rounds_of(rule)
    assert not told()


@pytest.mark.parametrize("rule", [DiLoCo(4, 0.95), DiLoCo(8, 0.8)], ids=str)
def test_what_its_momentum_carries_is_told_once(rule, told):
    rounds_of(rule, rate=0.1, noise=0.2)
    (message,) = (message for message in told() if "momentum" in message)
    assert "rank 3" in message
    assert repr(rule) in message
    assert "lower momentum or outer_lr" in message


def test_the_begin_means_nothing(told):
    rounds_of(DiLoCo(8, 0.8), rounds=20)
    assert not told()


def test_a_worker_that_learns_nothing_is_not_told(told):
    grow([1.0] * 50, rule=LocalSGD())
    assert not told()


@pytest.mark.parametrize(
    ("losses", "times"),
    [
        ([1.0, 0.5, 1.1, 1.2, 1.3], 1),
        ([1.0, 0.5, 1.1, 1.2, 1.3, 5.0, 9.0, 20.0], 1),
        ([1.0, 0.5, 1.1, 1.2, 0.9, 1.3, 1.4], 0),
        ([1.0, 0.5, 1.0, 1.0, 1.0, 1.0], 0),
        ([1.0, 0.5, 1.1, math.nan, 1.2, 1.3], 0),
        ([-1.0, -3.0, -0.5, 0.5, 2.0, 4.0], 0),
        ([2.0, math.nan, math.inf, math.inf, math.inf], 1),
        ([3.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.15], 0),
        ([], 0),
    ],
)
def test_a_loss_that_stays_above_twice_its_best_is_told_once(told, losses, times):
    watch = LossWatch(2)
    for loss in losses:
        watch.epoch_ends(loss, CenterMomentum(gain=2.0))
    assert len(told()) == times
    for message in told():
        assert message.startswith("rank 2: the training loss is"), message
        assert "gain=2.0" in message, message
