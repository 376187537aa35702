"""Gradients averaged inside the compiled function: all update rules of Lasagne, float16, what is refused."""

import numpy as np
import pytest
from float16_gradients import gradients
from scripts_here import script_path

from platoon_base import compat

compat.apply()
theano = pytest.importorskip("theano", reason="needs Theano: `make setup` installs it on Python 3.11")

import lasagne
import theano.tensor as T
from lasagne_rules import RULES, WITH_GRADIENTS
from saved_arrays import load

from platoon_base.errors import ConfigurationError
from platoon_base.job import single_worker
from platoon_plugins.lasagne import all_reduce_grads

pytestmark = pytest.mark.theano


EVERY_RULE = script_path("lasagne_gradients_every_rule")


@pytest.mark.slow
def test_n_workers_with_b_rows_are_one_process_with_n_b_rows_under_every_rule(run_job, tmp_path):
    run_job(EVERY_RULE).require_success()
    first, second = (load(tmp_path / f"{rank}.npz") for rank in range(2))
    assert len(first) == 2 * len({**RULES, **WITH_GRADIENTS})
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes(), name


def test_no_function_of_lasagne_is_forgotten():
    assert set(lasagne.updates.__all__) == {*RULES, *WITH_GRADIENTS}


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.promise), 3])
def test_sums_over_the_rows_are_those_of_one_process(run_job, workers):
    run_job(script_path("lasagne_gradients_sums_over_the_rows"), workers=workers).require_success()


def quanta(values, size):
    """By the equations: the quantum of each block of 64 elements."""
    flat = np.abs(values).reshape(len(values), -1)
    blocks = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 64))).reshape(len(values), -1, 64).max(axis=(0, 2))
    return np.repeat(2.0 ** np.ceil(np.log2(blocks / (2048 // size))), 64)[: flat.shape[1]].reshape(values.shape[1:])


@pytest.mark.slow
def test_through_float16_nothing_is_lost_only_delayed(run_job, tmp_path):
    size = 3
    run_job(script_path("lasagne_gradients_float16"), workers=size).require_success()
    draws = [[gradients(rank, step) for rank in range(size)] for step in range(200)]
    for k in range(2):
        wanted = np.array([[np.asarray(g[k], "f8") for g in ranks] for ranks in draws])
        # v has at most one half of a quantum more than g, so its quantum is at most twice that of g.
        quantum = 2 * quanta(wanted.reshape(-1, *wanted.shape[2:]), size)
        for average in (True, False):
            exact = wanted.sum(axis=(0, 1)) / (size if average else 1)
            kept = quantum / 2 * (1 if average else size)
            found = [load(tmp_path / f"{rank} {average}.npz") for rank in range(size)]
            totals = [seen[f"arr_{k}"] for seen in found]
            assert (np.abs(totals[0] - exact) <= kept).all()
            assert all(total.tobytes() == totals[0].tobytes() for total in totals)
            if not k:
                # The first step has no errors of earlier ones: were none fed back, its own would come 200 times.
                drift = 200 * np.abs(found[0]["arr_2"] - wanted[0].sum(axis=0) / (size if average else 1))[0]
                assert (drift > kept[0]).mean() > 0.5


def test_what_is_not_finite_is_not_hidden_and_does_not_stay(run_job):
    run_job(script_path("lasagne_gradients_what_is_not_finite_is_not_hidden_and_does")).require_success()


def test_another_model_or_another_call_is_refused_on_every_worker(run_job):
    outcome = run_job(script_path("lasagne_gradients_another_model_or_another_call_is_refused")).require_success()
    seen = outcome.reported
    assert len(seen) == 6
    assert "got w float64[2, 3] as parameter 0, worker 1's is w float64[2, 4]" in seen["shape 0"]
    assert "got all_reduce_grads(average=False, wire_dtype=None) of 0 statistics, worker 0 has" in seen["average 1"]
    assert "wire_dtype='float16'" in seen["wire 0"]


@pytest.mark.promise
def test_models_that_have_become_different_are_noticed_by_evaluate(run_job):
    """By other learning rates; what was compared before another model is built is not compared again."""
    outcome = run_job(script_path("lasagne_gradients_models_that_have_become_different")).require_success()
    for rank in range(2):
        error = outcome.reported[f"error {rank}"]
        assert "worker 1 has 0.6 in fourth (number 1), and worker 0 0.8" in error
        assert "the same optimizer and learning rate" in error


@pytest.fixture
def worker():
    with single_worker() as worker:
        yield worker


def make_params():
    return [theano.shared(np.ones((4, 3)), name="W"), theano.shared(np.ones(3), name="b")]


@pytest.mark.parametrize("wire_dtype", [None, "float16"])
def test_alone_the_gradients_are_as_they_were(worker, wire_dtype):
    params = make_params()
    loss = (params[0] ** 2).sum() + params[1].sum()
    grads = theano.grad(loss, params)
    assert all_reduce_grads(grads, params, wire_dtype=wire_dtype, worker=worker) == grads
    ours = all_reduce_grads(loss, params, wire_dtype=wire_dtype, worker=worker)
    assert [theano.printing.debugprint(g, file="str") for g in ours] == [
        theano.printing.debugprint(g, file="str") for g in grads
    ]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w, b: (T.sqr(w), [w]), "float64, matrix.* as the loss: pass a scalar"),
        (lambda w, b: (w.sum(), [w, b]), "the loss does not depend on b, "),
        (lambda w, b: (7.0, [w]), "got 7.0 as the loss"),
        (lambda w, b: ([w], [w, b]), "1 gradients for 2 parameters"),
        (lambda w, b: ([b, w], [w, b]), "in the order of the parameters"),
        (lambda w, b: ([np.ones((4, 3))], [w]), "as the gradient of W"),
        (lambda w, b: ([T.cast(w, "int32")], [w]), "int32.* as the gradient of W"),
        (lambda w, b: (w.sum(), [T.dmatrix("m")]), "m of type TensorVariable in params"),
        (lambda w, b: (w.sum(), w), "W as params: pass a list"),
        (lambda w, b: (w.sum(), []), "no param"),
        (lambda w, b: ([w, w], [w, w]), "same memory"),
        (lambda w, b: ([T.dvector()], [theano.shared(np.ones(3, "int64"), name="n")]), "n is of dtype int64"),
    ],
)
def test_what_cannot_work_is_refused(worker, call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        all_reduce_grads(*call(*make_params()), worker=worker)


@pytest.mark.parametrize("wire_dtype", ["float32", "int8", np.float16])
def test_another_wire_dtype_is_refused(worker, wire_dtype):
    with pytest.raises(ConfigurationError, match='None or "float16"'):
        all_reduce_grads([], make_params(), wire_dtype=wire_dtype, worker=worker)
