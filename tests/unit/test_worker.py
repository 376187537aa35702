"""The worker alone: a job of one behaves as the script without this package, and bad calls get clear errors."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from watching import until

from platoon_base import ASGD, EASGD
from platoon_base.errors import ConfigurationError, WorkerLostError
from platoon_base.job import connect
from platoon_base.rules import default_rule
from platoon_base.worker import copy_first_values

pytestmark = pytest.mark.base


def test_connect_alone_is_a_job_of_one(monkeypatch):
    monkeypatch.delenv("PLATOON_JOB", raising=False)
    with connect() as worker:
        assert (worker.global_rank, worker.global_size, worker.local_rank, worker.local_size) == (0, 1, 0, 1)
        assert connect() is worker
    assert connect() is not worker
    connect().close()


def test_alone_nothing_changes_the_parameters(solo_worker):
    x = np.arange(6.0)
    solo_worker.init_shared_params([x], EASGD())
    x += 1
    solo_worker.sync_params()
    solo_worker.copy_to_local()
    solo_worker.copy_to_global()
    with solo_worker.center_params():
        np.testing.assert_array_equal(x, np.arange(6.0) + 1)
    np.testing.assert_array_equal(x, np.arange(6.0) + 1)
    assert not solo_worker.advanced.shares


def test_alone_collective_calls_return_at_once(solo_worker):
    solo_worker.barrier()
    assert solo_worker.reduce_metrics({"m": (6.0, 4)}) == {"m": 1.5}
    assert not solo_worker.should_stop
    solo_worker.request_stop("done")
    assert solo_worker.should_stop
    assert solo_worker.stop_reason == "done"
    solo_worker.lock()
    solo_worker.unlock()


def test_alone_a_shard_is_all(solo_worker):
    np.testing.assert_array_equal(solo_worker.shard(5), np.arange(5))
    np.testing.assert_array_equal(solo_worker.shard(np.arange(5) * 2), np.arange(5) * 2)
    assert solo_worker.shard(["a", "b"]) == ["a", "b"]
    assert list(solo_worker.shard(iter("abc"))) == ["a", "b", "c"]


def test_a_second_init_is_refused(solo_worker):
    solo_worker.init_shared_params([np.zeros(3)], EASGD())
    with pytest.raises(ConfigurationError, match="once"):
        solo_worker.init_shared_params([np.zeros(3)], EASGD())


def test_alone_parameters_are_released_and_shared_anew(solo_worker):
    solo_worker.release_shared_params()
    for shape, rule in ((3, EASGD()), (5, ASGD())):
        solo_worker.init_shared_params([np.zeros(shape)], rule)
        solo_worker.sync_params()
        solo_worker.release_shared_params()
        with pytest.raises(ConfigurationError, match="init_shared_params first"):
            solo_worker.sync_params()
    solo_worker.release_shared_params()


def test_a_center_is_released_with_its_memory_and_made_anew(job_of_one):
    small, large = np.ones(3), np.ones((5, 7), "float32")
    job_of_one.init_shared_params([small], EASGD(0.5))
    assert "-center" in Path("/proc/self/maps").read_text()
    job_of_one.release_shared_params()
    assert "-center" not in Path("/proc/self/maps").read_text()
    assert not job_of_one.advanced.shares
    job_of_one.init_shared_params([large], ASGD())
    small += 1
    large += 1
    job_of_one.sync_params()
    with job_of_one.center_params():
        assert (large == 2).all()
    assert (small == 2).all(), "nothing touches it any more"


REAL = [np.arange(6.0).reshape(2, 3), np.float16(0.5), np.array([True, False]), np.array(7, "int64"), np.empty((0, 4))]


def test_alone_sums_of_arrays_are_the_arrays(solo_worker):
    total = solo_worker.advanced.sum_arrays("states", [*REAL, np.asfortranarray(REAL[0]), 3], {"m": (6, 4)})
    assert (total.pairs, total.ranks, total.stop) == ({"m": (6.0, 4.0)}, [0], "")
    for found, expected in zip(total.arrays, [*REAL, REAL[0], 3]):
        assert found.dtype == np.float64
        assert found.shape == np.shape(expected)
        np.testing.assert_array_equal(found, expected)
    total.arrays[0] += 1
    assert REAL[0][0, 0] == 0
    solo_worker.request_stop("enough")
    assert solo_worker.advanced.sum_arrays("nothing", []) == ([], {}, [0], "enough")


@pytest.mark.parametrize("n", [1 << 16, (1 << 16) + 1, 200_000])
def test_alone_a_sum_of_arrays_may_be_longer_than_a_message(solo_worker, n):
    values = np.random.default_rng(0).standard_normal((2, n))
    (found,), pairs, *_ = solo_worker.advanced.sum_arrays("states", [values], {"m": (1.0, 2.0)})
    np.testing.assert_array_equal(found, values)
    assert pairs == {"m": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [(np.zeros(3), "pass a list"), ([np.zeros(2), np.zeros(2, complex)], "complex128 at index 1"), (["x"], "index 0")],
)
def test_what_has_no_sum_in_float64_is_refused(solo_worker, arrays, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        solo_worker.advanced.sum_arrays("states", arrays)


@pytest.mark.parametrize("value", [None, 3, 2.5, "text", b"\0", ["a", 1, None], {"a": [1.0]}, "x" * 2045])
def test_alone_a_gathered_value_is_the_own_one(solo_worker, value):
    assert solo_worker.gather(value) == [value]


def test_a_value_too_large_to_gather_is_refused(solo_worker):
    with pytest.raises(
        ConfigurationError, match=r"2049 bytes to gather, and the limit is 2048.*sum_arrays or all_gather"
    ):
        solo_worker.gather("x" * 2046)


def test_alone_the_own_vote_decides(solo_worker):
    solo_worker.advanced.stop_votes.open(1)
    assert not solo_worker.advanced.stop_votes.passed("all", [solo_worker.global_rank])
    solo_worker.advanced.stop_votes.cast()
    assert solo_worker.advanced.stop_votes.voters() == {0}
    assert solo_worker.advanced.stop_votes.passed("all", [solo_worker.global_rank])
    assert not solo_worker.should_stop


@pytest.mark.parametrize(
    "call",
    [
        lambda w: w.sync_params(),
        lambda w: w.copy_to_local(),
        lambda w: w.copy_to_global(),
        lambda w: w.barrier(),
        lambda w: w.reduce_metrics({}),
        lambda w: w.request_stop("x"),
        lambda w: w.report({}),
        lambda w: w.send_req("x"),
        lambda w: w.lock(),
        lambda w: w.unlock(),
        lambda w: w.init_shared_params([np.zeros(3)], EASGD()),
        lambda w: w.release_shared_params(),
        lambda w: w.advanced.sum_arrays("x", []),
        lambda w: w.gather(1),
    ],
)
def test_after_close_is_refused(solo_worker, call):
    solo_worker.init_shared_params([np.zeros(3)], EASGD())
    solo_worker.close()
    solo_worker.close()
    with pytest.raises(ConfigurationError, match="after close"):
        call(solo_worker)


@pytest.mark.parametrize(
    ("params", "rule", "options", "complaint"),
    [
        ([], EASGD(), {}, "no parameters"),
        (np.zeros(3), EASGD(), {}, "pass a list"),
        ([3.0], EASGD(), {}, "NumPy arrays, Theano shared variables or tensors of torch"),
        ([np.zeros(3, int)], EASGD(), {}, "int64"),
        ([np.zeros(3)], 0.5, {}, "got rule=0.5: pass a rule"),
        ([np.zeros(3)], EASGD, {}, "got rule=<class.*: pass a rule"),
        ([np.zeros(3)], ASGD(), {"on_nonfinite": "ignore"}, "on_nonfinite='ignore'"),
    ],
)
def test_what_cannot_be_shared_is_refused(solo_worker, params, rule, options, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        solo_worker.init_shared_params(params, rule, **options)


def test_a_rule_is_optional(job_of_one):
    x = np.zeros(3)
    job_of_one.init_shared_params([x])
    x += 1
    job_of_one.sync_params()
    expected, center, *states = (np.full(1, value) for value in (1.0, 0.0, 0.0, 0.0, 0.0))
    default_rule().resolved(2).sync(expected, center, states[:1], states[1:])
    np.testing.assert_allclose(x, expected[0])


def test_progress_is_counted(job_of_one, job_state_of_one):
    job_of_one.progress(steps=3, epoch=1, loss=0.5)
    job_of_one.progress(steps=2)
    seen = job_state_of_one.progress(0)
    assert (seen.steps, seen.epoch, seen.loss) == (5, 1, 0.5)
    assert seen.updated >= seen.started > 0


def test_a_worker_says_that_it_goes_on_without_a_step(job_of_one, job_state_of_one):
    job_of_one.progress()
    assert job_state_of_one.progress(0).started == 0  # the first step is still to come
    job_of_one.progress(steps=1, loss=0.5)
    before = job_state_of_one.progress(0)
    until(lambda: time.monotonic() > before.updated)
    job_of_one.progress()
    seen = job_state_of_one.progress(0)
    assert seen.updated > before.updated
    assert seen._replace(updated=0.0) == before._replace(updated=0.0)


def test_synchronizations_and_copies_are_counted_apart(job_of_one, job_state_of_one):
    job_of_one.init_shared_params([np.zeros(3)])

    def counts():
        seen = job_state_of_one.progress(0)
        return seen.syncs, seen.exchanges

    assert counts() == (0, 0)
    job_of_one.copy_to_local()
    job_of_one.copy_to_global()
    with job_of_one.center_params():
        assert counts() == (0, 3)
    job_of_one.sync_params()
    job_of_one.advanced.served().sync([np.zeros(3)], timeout_s=10)
    assert counts() == (2, 5)


def test_the_environment_sets_how_long_all_calls_wait():
    code = "from platoon_base.worker import DEFAULT_TIMEOUT_S, Worker\nprint(DEFAULT_TIMEOUT_S)"

    def run(seconds):
        environment = {**os.environ, "PLATOON_TIMEOUT_S": seconds}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
        )

    assert run("12.5").stdout == "12.5\n"
    for wrong in ("0", "-1", "nan", "inf", "soon"):
        assert f"ConfigurationError: got PLATOON_TIMEOUT_S='{wrong}'" in run(wrong).stderr


def test_limits_are_announced_and_the_steps_of_an_epoch_learned(job_of_one, job_state_of_one):
    def seen(*names):
        progress = job_state_of_one.progress(0)
        return tuple(getattr(progress, name) for name in names)

    job_of_one.advanced.announce(epoch=0, last_epoch=5, limit="patience 0/3")
    assert seen("epoch", "last_epoch", "epoch_steps", "limit", "started") == (0, 5, 0, "patience 0/3", 0.0)
    for loss in (2.0, 1.0, None):
        job_of_one.advanced.count_step(loss)
    assert seen("steps", "loss") == (3, 1.0)
    job_of_one.advanced.announce(epoch=1)
    assert seen("epoch", "epoch_steps", "steps_before_epoch", "last_epoch") == (1, 3, 3, 5)
    job_of_one.advanced.count_step()
    job_of_one.progress(steps=1, epoch=2)  # the script counts that one itself
    job_of_one.advanced.count_step(0.5)
    job_of_one.advanced.announce(epoch=3, epoch_steps=7)
    assert seen("steps", "epoch", "epoch_steps", "loss") == (4, 2, 7, 0.5)
    job_of_one.progress(steps=4)
    job_of_one.progress(epoch=3)
    assert seen("epoch", "epoch_steps") == (3, 7), "it was told"
    job_of_one.close()
    job_of_one.advanced.announce(epoch=9)
    assert seen("epoch") == (3,)


def test_first_values_of_a_worker_that_is_lost_meanwhile_are_no_zeros(job_of_one):
    """Ranks 1 and 2 were there when the participants were counted."""

    class Weights:
        name, value = "weights", np.array([3.0, 4.0])

        def get_value(self, borrow=False):
            return self.value

        def set_value(self, value):
            self.value = value

    weights = Weights()
    with pytest.raises(WorkerLostError, match="rank 1"):
        copy_first_values([weights], job_of_one, participants=[1, 2], timeout_s=10)
    assert weights.value.tolist() == [3, 4]
