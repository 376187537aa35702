"""Gradients averaged inside the compiled function: all update rules of Lasagne, what is refused."""

import numpy as np
import pytest
from needing import require
from scripts_here import script_path

theano = require("theano")

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


@pytest.mark.parametrize(
    "script", ["what_is_not_finite_is_not_hidden_and_does_not_stay", "another_model_or_another_call_is_refused"]
)
def test_workers(run_job, script):
    run_job(script_path(f"lasagne_gradients_{script}")).require_success()


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


def test_alone_the_gradients_are_as_they_were(worker):
    params = make_params()
    loss = (params[0] ** 2).sum() + params[1].sum()
    grads = theano.grad(loss, params)
    assert all_reduce_grads(grads, params, worker=worker) == grads
    ours = all_reduce_grads(loss, params, worker=worker)
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
        (lambda w, b: ([w, w], [w, w]), "share memory"),
        (lambda w, b: ([T.dvector()], [theano.shared(np.ones(3, "int64"), name="n")]), "n is of dtype int64"),
    ],
)
def test_what_cannot_work_is_refused(worker, call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        all_reduce_grads(*call(*make_params()), worker=worker)
