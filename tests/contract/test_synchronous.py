"""Synchronous rules on real workers, against their equations written out over all workers; the common start."""

import numpy as np
import pytest
from saved_arrays import load
from scripts_here import script_path
from synchronous_by_hand import require_by_hand

from platoon_base.errors import ConfigurationError
from platoon_base.job import single_worker
from platoon_base.layout import Layout
from platoon_base.rules.synchronous import average_sgd, downpour, easgd, sum_sgd
from platoon_base.worker import FlatAllReduce, start_together
from platoon_base.worker.initial_values import require_same_layout

pytestmark = pytest.mark.base

STEPS = 5
SHAPES = [(3, 4), (), (70_000,), (0, 2)]  # the third is large enough to travel alone

TRAIN = script_path("synchronous_train")


@pytest.mark.parametrize("size", [2, 3])
def test_every_rule_does_what_its_equations_say(run_job, tmp_path, size):
    run_job(TRAIN, workers=size).require_success()
    require_by_hand(tmp_path, size, STEPS, SHAPES)


def test_a_step_makes_one_call_for_each_dtype():
    calls = []

    class Worker:
        def all_reduce(self, array, op, dest, timeout_s):
            calls.append((array.dtype.name, array.size, op, timeout_s))

    reduce = FlatAllReduce(Worker(), timeout_s=7)
    arrays = [np.ones((3, 2), "f4"), np.ones(5), np.ones((), "f4"), np.ones(2, "f4")]
    easgd(arrays, [a.copy() for a in arrays], 0.5, reduce)
    assert calls == [("float32", 9, "sum", 7), ("float64", 5, "sum", 7)]


def test_alone_the_rules_are_those_of_one_worker():
    with single_worker() as worker:
        reduce = FlatAllReduce(worker)
        x, c, u = [np.full(2, 3.0)], [np.full(2, 1.0)], [np.full(2, 5.0)]
        easgd(x, c, 0.25, reduce)
        np.testing.assert_array_equal([x[0], c[0]], [[2.5, 2.5], [1.5, 1.5]])
        sum_sgd(u, reduce)
        average_sgd(u, reduce)
        downpour(x, u, c, reduce)
        np.testing.assert_array_equal([x[0], c[0], u[0]], [[6.5, 6.5], [6.5, 6.5], [0, 0]])
        start_together(x, worker)
        np.testing.assert_array_equal(x[0], [6.5, 6.5])


ONE, TWO = np.ones(2), np.ones(3)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda r: easgd([ONE], [ONE.copy()], 0.0, r), r"alpha=0.0: outside \(0, 1\]"),
        (lambda r: easgd([ONE], [ONE.copy()], 1.5, r), r"alpha=1.5: outside"),
        (lambda r: easgd([ONE], [ONE.copy()], None, r), "alpha is unknown"),
        (lambda r: easgd([ONE], [TWO], 0.5, r), r"float64\[3\] as number 0 of center, and float64\[2\].* of local"),
        (lambda r: easgd([ONE], [], 0.5, r), "nothing as number 0 of center"),
        (lambda r: easgd([ONE], [ONE.astype("f4")], 0.5, r), "float32"),
        (lambda r: downpour([ONE], [ONE], [ONE, TWO], r), r"float64\[3\] as number 1 of center, and nothing"),
        (lambda r: downpour([ONE], [TWO], [ONE], r), "number 0 of accumulated"),
        (lambda r: sum_sgd([np.ones((2, 2)).T], r), "number 0, which is not a C-contiguous array"),
        (lambda r: sum_sgd([np.float32(1)], r), "float32 number 0"),
        (lambda r: average_sgd([[1.0]], r), "list number 0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_changed(call, complaint):
    before = [np.ones((2, 2)).T, ONE.copy(), TWO.copy()]
    del before[0]
    with single_worker() as worker, pytest.raises(ConfigurationError, match=complaint):
        call(FlatAllReduce(worker))
    np.testing.assert_array_equal(ONE, before[0])
    np.testing.assert_array_equal(TWO, before[1])


def test_all_workers_start_with_the_first_ones_values(run_job, tmp_path):
    run_job(script_path("synchronous_all_workers_start_with_the_first_ones_values"), workers=3).require_success()
    for rank in range(3):
        found = load(tmp_path / f"{rank}.npz").values()
        expected = [np.ones(3, "f4"), np.arange(6.0).reshape(2, 3), np.array(0.1), np.array(-0.0)]
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def test_another_model_or_purpose_is_refused_on_every_worker(run_job):
    script = script_path("synchronous_another_model_or_purpose_is_refused_on_every")
    seen = run_job(script, workers=3).require_success().reported
    assert len(seen) == 9
    assert (
        "got parameter 1 float32[2, 3] as parameter 1, and worker 2's is parameter 1 float32[2, 4]" in seen["shape 0"]
    )
    assert "worker 0's is parameter 1 float32[2, 3]" in seen["shape 2"]
    assert "got 2 parameters, and worker 1's model has 1" in seen["number 0"]
    assert "got mean=False, and worker 1 has mean=True" in seen["purpose 2"]


def test_alone_every_layout_is_the_same():
    with single_worker() as worker:
        require_same_layout(Layout.of([ONE], ["a"]), worker)


def test_values_that_have_become_different_are_noticed_by_all(run_job):
    """Equal, apart by rounding, and apart in one place of one array; NaN in the same place is the same."""
    outcome = run_job(script_path("synchronous_values_that_have_become_different"), 3).require_success()
    complaints = {
        "rate": "rate: some workers got other values than the others: worker 2 has 0.2 in rate, and worker 0 0.1",
        "bias": "worker 2 has 1e-09 in b, and worker 0 0",
        "poison": "worker 2 has nan in nan, and worker 0 1",
    }
    assert sorted(outcome.reported) == sorted(f"{name} {rank}" for name in complaints for rank in range(3))
    for key, text in outcome.reported.items():
        assert complaints[key.split()[0]] in text
        assert text.endswith("; set them alike")
