"""Gossip in shared memory: GoSGD by a simulation, weights that add up, joins, deaths, and the consensus."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from comparing import require_close, require_equal
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts_here import script_path

from platoon_base.centers import gossip, stripes
from platoon_base.centers.base import NonFiniteElement
from platoon_base.centers.gossip import GOSSIP, WHOLE, GossipCenters, shares_of
from platoon_base.centers.host import STRIPE_BYTES
from platoon_base.centers.stripes import StripeLocks
from platoon_base.errors import ConfigurationError, LayoutMismatchError
from platoon_base.job.files import segment_prefix
from platoon_base.layout import Layout
from platoon_base.rules import Adopt, GoSGD
from platoon_base.shm.segments import Segment

pytestmark = pytest.mark.base

SHAPES = [(3, 5), (STRIPE_BYTES // 4 + 17,), ()]


def model(seed, dtype="float32", shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape), dtype=dtype) for shape in shapes]


class Job:
    """The handles of several workers in one process, each with its parameters; those in ``dead`` have died."""

    def __init__(self, rule, start, workers):
        self.rule, self.layout, self.dead = rule, Layout.of(start), set()
        self.centers = GossipCenters(
            f"{segment_prefix()}test{os.getpid()}-gossip", workers, lambda rank: rank in self.dead
        )
        self.workers, self.params = {}, {}
        for rank in range(workers):
            self.join(rank, start)

    def join(self, rank, start=None):
        make = self.centers.attach if self.workers else self.centers.create
        center = self.workers[rank] = make(self.layout, self.rule, rank)
        self.params[rank] = self.layout.empty()
        if make == self.centers.create:
            center.fill(start, [])
        center.read(self.params[rank], True, 10, begin=True)

    def step(self, rank, by=None):
        for array, each in zip(self.params[rank], by or [0] * len(self.layout)):
            array += each
        assert self.workers[rank].sync(self.rule, self.params[rank], True, 10) is None

    def die(self, rank):
        """End a worker without its `close`, as the kernel ends a process."""
        self.dead.add(rank)
        dead = self.workers.pop(rank)
        dead.close(over=True)

    @property
    def weights(self):
        """The weight of each stripe over all slots, with what is under way."""
        some = next(iter(self.workers.values()))
        in_slots = sum(slot.weights.astype(object) for slot in some.slots.every())
        return list(in_slots + sum(np.array(each.under_way, object) for each in self.workers.values()))

    def mean(self):
        out = self.layout.empty()
        next(iter(self.workers.values())).read(out, True, 10, averaged=True)
        return out

    def close(self):
        for center in self.workers.values():
            center.close(over=True)
        Segment.unlink(self.centers.name)


@pytest.fixture
def job():
    made = []

    def make(rule, start, workers):
        made.append(Job(rule, start, workers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def simulated(rule, start, workers, turns, steps):
    """GoSGD as the paper has it, with a list of messages for each worker; returns all parameters and weights."""
    random = [np.random.default_rng((rule.seed, rank)) for rank in range(workers)]
    x = [[a.astype("float64") for a in start] for _ in range(workers)]
    w, mail = shares_of(workers), [[] for _ in range(workers)]
    for i, by in zip(turns, steps):
        x[i] = [a + b for a, b in zip(x[i], by)]
        for theirs, weight in mail[i]:
            total = w[i] + weight
            x[i] = [(w[i] / total) * a + (weight / total) * b for a, b in zip(x[i], theirs)]
            w[i] = total
        mail[i] = []
        if random[i].random() < rule.probability:
            others = [rank for rank in range(workers) if rank != i]
            to = others[int(random[i].integers(len(others)))]
            sent, w[i] = w[i] // 2, w[i] - w[i] // 2
            mail[to].append(([a.copy() for a in x[i]], sent))
    return x, w, mail


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5), ("float16", 0.1)])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_it_is_the_algorithm_of_the_paper(job, workers, dtype, tolerance):
    rule, shapes = GoSGD(probability=0.4, seed=3), [(4, 3), (2,)]
    start, rng = model(0, dtype, shapes), np.random.default_rng(1)
    turns = [int(turn) for turn in rng.integers(workers, size=40 * workers)]
    steps = [model(100 + i, dtype, shapes) for i in range(len(turns))]
    real = job(rule, start, workers)
    for turn, by in zip(turns, steps):
        real.step(turn, by)
    x, w, mail = simulated(rule, start, workers, turns, steps)
    assert w != shares_of(workers) or any(mail)
    for rank in range(workers):
        require_close(real.params[rank], x[rank], rtol=tolerance, atol=tolerance)
        assert real.workers[rank].slots.own.weight == w[rank] + sum(weight for _, weight in mail[rank])
    models = [*zip(x, w), *(message for each in mail for message in each)]
    for i, got in enumerate(real.mean()):
        want = sum(values[i] * (weight / WHOLE) for values, weight in models)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


ACTIONS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["step", "join", "leave"])), max_size=25)


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS, workers=st.integers(1, 4), seed=st.integers(0, 5))
def test_weights_add_up_to_one_and_the_mean_stays(actions, workers, seed):
    """Whatever comes in whichever order, but for deaths: joins and leaves keep both, too."""
    starts = model(seed, "float64", [(5,), (2, 2)])
    job = Job(GoSGD(probability=0.7, seed=seed), starts, workers)
    try:
        for rank in job.workers:  # apart, so that there is something to mix
            job.step(rank, model(50 + rank, "float64", [(5,), (2, 2)]))
        want, new = job.mean(), workers
        for which, action in actions:
            rank = sorted(job.workers)[which % len(job.workers)]
            if action == "step":
                job.step(rank)
            elif action == "join":
                job.join(new)
                new += 1
            elif len(job.workers) > 1:
                job.workers.pop(rank).close()
                job.dead.add(rank)
            assert set(job.weights) == {WHOLE}
            require_close(job.mean(), want, rtol=0, atol=1e-12)
    finally:
        job.close()


def test_without_messages_a_worker_trains_as_it_would_by_itself(job):
    start = model(0)
    real = job(GoSGD(probability=1e-12), start, 2)
    want = [a.copy() for a in start]
    for seed in range(5):
        real.step(0, model(seed))
        for a, by in zip(want, model(seed)):
            a += by
    require_equal(real.params[0], want)


def test_reading_the_consensus_changes_it_for_nobody(job):
    real = job(GoSGD(probability=1.0), model(0), 3)
    for turn in (0, 1, 2, 2, 0):
        real.step(turn, model(turn))
    read = []
    for rank in range(3):
        read.append(real.layout.empty())
        real.workers[rank].read(read[-1], True, 10, begin=True, averaged=True)
    watching = real.centers.watch(real.layout)
    read.append(watching.snapshot()[0])
    watching.close()
    for other in read[1:]:
        require_equal(read[0], other)


def test_the_weight_of_a_dead_worker_is_left_out(job):
    real = job(GoSGD(probability=1e-12), [np.zeros(4)], 3)
    for rank in range(3):
        real.step(rank, [np.full(4, rank)])
    real.die(2)
    np.testing.assert_array_equal(real.mean()[0], 0.5)
    real.rule = GoSGD(probability=1.0)
    for _ in range(20):  # nothing goes to the dead, so nothing is lost any more
        real.step(0)
        real.step(1)
    living = [slot.weight for slot in real.workers[0].slots.every() if slot.owner in (0, 1)]
    assert sum(living) == sum(shares_of(3)[:2])
    np.testing.assert_allclose(real.mean()[0], 0.5, rtol=1e-12)


def test_one_that_is_started_again_takes_half_of_a_workers_weight(job):
    real = job(GoSGD(probability=1e-12), [np.zeros(4)], 2)
    real.step(0, [np.full(4, 6.0)])
    real.step(1, [np.full(4, 2.0)])
    real.die(1)
    real.dead.clear()
    real.join(1)
    np.testing.assert_array_equal(real.params[1][0], 6)
    assert [slot.weight for slot in real.workers[0].slots.every()] == [WHOLE // 4, WHOLE // 4]


def test_when_none_is_left_the_next_goes_on_from_the_last(job):
    real = job(GoSGD(probability=1e-12), [np.zeros(4)], 2)
    watching = real.centers.watch(real.layout)
    real.step(1, [np.full(4, 2.0)])
    real.die(1)
    real.step(0, [np.full(4, 6.0)])
    np.testing.assert_array_equal(watching.snapshot()[0][0], 6)
    real.workers[0].close()
    real.dead.add(0)
    real.dead.discard(1)
    np.testing.assert_array_equal(watching.snapshot()[0][0], 4)
    real.join(1)
    np.testing.assert_array_equal(real.params[1][0], 2)
    watching.close()


def test_what_a_stalled_worker_does_not_take_comes_back(job):
    """The receiver is stopped while it holds its slot: the sender goes on, and has its weight again afterwards."""
    real = job(GoSGD(probability=1.0), [np.zeros(4)], 2)
    stalled = real.workers[1].slots.own
    assert stalled.locks.lock(stalled.stripes[0])
    real.step(0, [np.full(4, 4.0)])
    assert real.workers[0].under_way == [WHOLE // 4]
    assert set(real.weights) == {WHOLE}
    stalled.locks.release_all()
    real.rule = GoSGD(probability=1e-12)
    real.step(0)
    assert real.workers[0].under_way == [0]
    assert real.workers[0].slots.own.weight == WHOLE // 2
    np.testing.assert_array_equal(real.params[0][0], 4)


def test_a_sender_that_is_stopped_delays_the_receiver_once(job, monkeypatch):
    """It holds a stripe of the receiver's slot, whose next synchronizations leave that out at once."""
    real = job(GoSGD(probability=1e-12), [np.zeros(4)], 2)
    theirs = real.workers[1].slots.every()[0]
    assert theirs.locks.lock(theirs.stripes[0])
    monkeypatch.setattr(stripes, "timeout", {"stripe": 0.05}.get)
    assert real.workers[0].sync(real.rule, [np.ones(4)], True, 100) is None
    monkeypatch.setattr(stripes, "timeout", {"stripe": 30.0}.get)
    began = time.monotonic()
    for _ in range(3):
        assert real.workers[0].sync(real.rule, [np.ones(4)], True, 100) is None
        assert not real.workers[0].whole
    assert time.monotonic() - began < 15
    theirs.locks.release_all()
    assert real.workers[0].sync(real.rule, [np.ones(4)], True, 100) is None
    assert real.workers[0].whole


def test_elements_that_are_not_finite_stay_out(job):
    real = job(GoSGD(probability=1.0), [np.zeros(6)], 2)
    real.params[0][0][:] = [1, np.nan, 1, np.inf, 1, 1]
    assert real.workers[0].sync(real.rule, real.params[0], True, 10) == NonFiniteElement(0, 1)
    real.step(1)
    assert np.isfinite(real.params[1][0]).all()
    assert np.isfinite(real.mean()[0]).all()
    real.workers[0].read(real.params[0], True, 10, begin=True)
    assert np.isfinite(real.params[0][0]).all()


@pytest.mark.parametrize("probability", [1.0, 1e-12])
def test_writing_reaches_all(job, probability):
    real = job(GoSGD(probability=probability), [np.zeros(4)], 3)
    for rank in range(3):
        real.step(rank, [np.full(4, rank)])
    real.params[1][0][:] = 7
    real.workers[1].write(real.params[1], True, 10)
    np.testing.assert_array_equal(real.mean()[0], 7)
    for rank in range(3):
        real.step(rank)
        np.testing.assert_allclose(real.params[rank][0], 7, rtol=1e-12)


def test_what_comes_back_after_an_overwrite_is_what_was_written(job):
    """A sender whose receiver stalled takes its weight back only after another worker has overwritten all."""
    real = job(GoSGD(probability=1.0), [np.zeros(4)], 2)
    stalled = real.workers[1].slots.own
    assert stalled.locks.lock(stalled.stripes[0])
    real.step(0, [np.full(4, 4.0)])
    stalled.locks.release_all()
    assert any(real.workers[0].under_way)
    real.workers[1].write([np.full(4, 7.0)], True, 10)
    real.rule = GoSGD(probability=1e-12)
    real.step(0)
    np.testing.assert_array_equal(real.params[0][0], 7)
    assert set(real.weights) == {WHOLE}


def test_writing_reaches_one_that_is_not_finite(job):
    real = job(GoSGD(probability=1e-12), [np.zeros(4)], 2)
    real.params[1][0][:] = [np.nan, np.inf, 1e308, 1]
    real.workers[0].write([np.full(4, 7.0)], True, 10)
    real.step(1)
    np.testing.assert_array_equal(real.params[1][0], 7)


def test_memory_that_grows_while_it_is_opened_is_that_of_the_job(job):
    """Of two that join at once, one adds a slot after the other has mapped the memory."""
    real = job(GoSGD(), [np.zeros(4)], 1)
    with Segment.attach(real.centers.name) as mapped:
        real.join(1)
        GOSSIP.read(mapped.buffer, real.layout)  # which does not raise


def test_a_worker_without_others_goes_on_as_it_is(job):
    real = job(GoSGD(probability=1.0), [np.zeros(4)], 1)
    params = [np.full(4, 3.0)]
    assert real.workers[0].sync(Adopt(real.rule), params, True, 10) is None
    np.testing.assert_array_equal(params[0], 3)
    np.testing.assert_array_equal(real.mean()[0], 3)
    real.step(0, [np.full(4, 1.0)])
    assert set(real.weights) == {WHOLE}


def test_two_that_leave_together_keep_their_weight(job, monkeypatch):
    """Each finds the other leaving; the consensus is that of both afterwards."""
    real = job(GoSGD(probability=1.0), [np.zeros(4)], 2)
    watching = real.centers.watch(real.layout)
    for rank in (0, 1, 1):
        real.step(rank, [np.full(4, 2.0 + rank)])
    want = real.mean()[0]
    one, two = (real.workers.pop(rank) for rank in (0, 1))  # the first has got something and not merged it
    lock = StripeLocks.visit

    def then_the_other_leaves(locks, *arguments):
        with monkeypatch.context() as once:
            once.setattr(StripeLocks, "visit", lock)
            two.close()
        monkeypatch.setattr(StripeLocks, "visit", lock)
        return lock(locks, *arguments)

    monkeypatch.setattr(StripeLocks, "visit", then_the_other_leaves)
    one.close()
    np.testing.assert_array_equal(watching.snapshot()[0][0], want)
    assert sum(slot.weight for slot in watching.slots.every()) == WHOLE
    watching.close()


def test_one_that_joins_as_the_last_ones_leave_takes_no_slot_of_theirs(job, monkeypatch):
    """One is leaving, with most of the weight, and the other has left: the third goes on from that."""
    monkeypatch.setattr(gossip, "timeout", {"stripe": 0.05}.get)
    real = job(GoSGD(probability=1e-12), [np.zeros(4)], 2)
    for rank in (0, 1):
        real.step(rank, [np.full(4, 2.0 + rank)])
    one = real.workers.pop(0)
    lock = StripeLocks.visit

    def then_all_else(locks, *arguments):
        with monkeypatch.context() as once:
            once.setattr(StripeLocks, "visit", lock)
            leaving.append(one.slots.own)
            real.die(1)
            real.workers[9] = one  # so that the third attaches
            real.join(2)
            del real.workers[9]
        monkeypatch.setattr(StripeLocks, "visit", lock)
        return lock(locks, *arguments)

    leaving = []
    one.slots.own.weights += np.uint64(2)
    monkeypatch.setattr(StripeLocks, "visit", then_all_else)
    one.close()
    assert real.workers[2].slots.own.index != leaving[0].index
    np.testing.assert_array_equal(real.params[2][0], 3)


def test_slots_are_used_again(job):
    """Memory grows with the workers at one time, not with all that have ever joined."""
    real = job(GoSGD(), [np.zeros(4)], 2)
    for rank in range(2, 12):
        real.join(rank)
        if rank % 2:
            real.workers.pop(rank).close()
            real.dead.add(rank)
        else:
            real.die(rank)
    assert len(real.workers[0].slots.every()) == 3
    real.join(20)
    real.join(21)
    assert len(real.workers[0].slots.every()) == 4


def test_another_model_is_refused(job):
    real = job(GoSGD(), [np.zeros(4)], 2)
    with pytest.raises(LayoutMismatchError, match="another model"):
        real.centers.attach(Layout.of([np.zeros(5)]), real.rule, 2)


def test_processes_at_once_lose_no_weight(job):
    """Three processes send at every synchronization; all that each has added arrives, by its weight."""
    n = 3 * STRIPE_BYTES // 4 + 1001
    real = job(GoSGD(probability=1.0), [np.zeros(n, "float32")], 1)
    code = script_path("gossip_processes_at_once")
    workers = [
        subprocess.Popen(
            [sys.executable, code, real.centers.name, str(rank), str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for rank in (1, 2, 3)
    ]
    assert [worker.stdout.readline() for worker in workers] == [b"joined\n"] * 3
    for worker in workers:
        worker.stdin.write(b"\n")
        worker.stdin.close()
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    for worker in workers:
        worker.stdout.close()
    assert set(real.weights) == {WHOLE}
    assert real.workers[0].slots.own.weight == WHOLE * len(real.workers[0].slots.own.weights)
    real.step(0)
    np.testing.assert_allclose(real.params[0][0], 5, rtol=1e-5)


def test_a_process_that_is_killed_anywhere_stops_nobody_and_makes_no_weight(job):
    """Its weight, and what is on the way from it, may be lost; what is left is a mean of what all had."""
    n = 3 * STRIPE_BYTES // 4 + 1001
    real = job(GoSGD(probability=1.0), [np.zeros(n, "float32")], 1)
    code, workers = script_path("gossip_processes_at_once"), []
    try:
        for rank in (1, 2, 3):
            command = [sys.executable, code, real.centers.name, str(rank), str(n), "on and on"]
            workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert workers[-1].stdout.readline() == b"joined\n"
        for worker in workers:
            worker.stdin.write(b"\n")
            worker.stdin.flush()
        for turn, worker in enumerate(workers):
            for _ in range(3 + turn):
                for each in workers[turn:]:
                    assert each.stdout.readline() == b"synchronized\n"
                real.step(0)
            worker.kill()
            worker.wait(60)
            real.step(0)
            (mean,) = real.mean()
            assert mean.min() >= 0
            assert mean.max() <= 3 + 1e-5
        assert 0 < max(real.weights) <= WHOLE
        assert real.workers[0].slots.others() == []
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(60)
            worker.stdin.close()
            worker.stdout.close()


@pytest.mark.parametrize(
    "arguments", [{"probability": 0}, {"probability": 1.1}, {"probability": "x"}, {"seed": -1}, {"seed": 0.5}]
)
def test_what_cannot_work_is_refused(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ConfigurationError, match=f"got {name}={value!r}"):
        GoSGD(**arguments)
