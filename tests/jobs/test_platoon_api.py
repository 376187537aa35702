"""The original Platoon's synchronous rules and collective operations, under its names, on real workers."""

import numpy as np
import pytest
from scripts_here import script_path
from synchronous_by_hand import require_by_hand

from platoon_base import compat

compat.apply()
theano = pytest.importorskip("theano", reason="needs Theano: `make setup` installs it on Python 3.11")

import theano.tensor as T

from platoon_base.errors import ConfigurationError
from platoon_base.job import single_worker
from platoon_base.platoon_api import global_dynamics, ops
from platoon_base.platoon_api.channel import Controller

pytestmark = pytest.mark.theano

STEPS = 4
SHAPES = [(3, 4), (), (5,)]

TRAIN = script_path("platoon_api_train")


@pytest.mark.parametrize("size", [2, 3])
def test_every_rule_does_what_its_equations_say(run_job, tmp_path, size):
    run_job(TRAIN, workers=size).require_success()
    require_by_hand(tmp_path, size, STEPS, SHAPES)


@pytest.fixture
def worker():
    with single_worker() as worker:
        yield worker


def shared(value=1.0, dtype="f8"):
    return theano.shared(np.full(2, value, dtype))


def test_alone_the_rules_are_those_of_one_worker(worker):
    x, c, u = shared(3), shared(1), shared(5)
    rule = global_dynamics.EASGD(worker)
    rule.make_rule(x, [c], 0.25)
    rule()
    np.testing.assert_array_equal([x.get_value(), c.get_value()], [[2.5, 2.5], [1.5, 1.5]])
    for average in (False, True):
        rule = global_dynamics.SGD(average, worker)
        rule.make_rule([u])
        rule()
        np.testing.assert_array_equal(u.get_value(), [5, 5])
    rule = global_dynamics.Downpour(worker=worker)
    rule.make_rule(x, u, c)
    rule()
    np.testing.assert_array_equal([v.get_value() for v in (x, u, c)], [[6.5, 6.5], [0, 0], [6.5, 6.5]])
    assert ops.AllReduceSum(x, worker=worker) is x


@pytest.mark.promise
def test_a_new_alpha_holds_from_the_next_step_on(worker):
    x, c, alpha = shared(8), shared(0), theano.shared(0.5, name="alpha")
    by_number, by_variable = global_dynamics.EASGD(worker), global_dynamics.EASGD(worker)
    by_number.make_rule(x, c, 0.5)
    by_number()
    np.testing.assert_array_equal(x.get_value(), [4, 4])
    c.set_value(np.zeros(2))
    by_number.alpha = 0.25
    assert by_number.alpha == 0.25
    by_number()
    np.testing.assert_array_equal(x.get_value(), [3, 3])
    c.set_value(np.zeros(2))
    by_variable.make_rule(x, c, alpha)
    alpha.set_value(1.0)
    assert by_variable.alpha == 1.0
    by_variable()
    np.testing.assert_array_equal([x.get_value(), c.get_value()], [[0, 0], [3, 3]])
    with pytest.raises(ConfigurationError, match="outside"):
        by_number.alpha = 2


X = shared()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda w: global_dynamics.SumSGD(w).make_rule([]), "no variable as local_updates"),
        (lambda w: global_dynamics.SumSGD(w).make_rule([T.dvector()]), "TensorVariable in local_updates"),
        (lambda w: global_dynamics.SumSGD(w).make_rule(np.ones(2)), "ndarray in local_updates"),
        (lambda w: global_dynamics.EASGD(w).make_rule(X, X, 0.5), "share memory"),
        (lambda w: global_dynamics.EASGD(w).make_rule(X, [X, X], 0.5), "number 1 of central_particle"),
        (lambda w: global_dynamics.EASGD(w).make_rule(X, shared(dtype="f4"), 0.5), "float32"),
        (lambda w: global_dynamics.EASGD(w).make_rule(X, shared(), 0), "alpha=0"),
        (lambda w: global_dynamics.EASGD(w).make_rule(X, shared(), theano.shared(3.0)), "alpha=3.0"),
        (lambda w: global_dynamics.EASGD(w).alpha, "make_rule first"),
        (lambda w: setattr(global_dynamics.EASGD(w), "alpha", 0.5), "no rule yet"),
        (lambda w: global_dynamics.Downpour(worker=w).make_rule(X, shared(dtype="i4"), shared()), "int32"),
        (lambda w: ops.AllReduceSum(X, dest=T.dmatrix(), worker=w), "dest of type TensorType.float64, matrix"),
    ],
)
def test_what_cannot_work_is_refused(worker, make, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        make(worker)


def test_a_variable_of_a_type_that_workers_do_not_combine_is_a_type_error(worker):
    for src, dest in ((T.bmatrix() > 0, None), (T.zmatrix(), None), (X, T.dmatrix()), (X, T.fvector())):
        with pytest.raises(TypeError, match="cast"):
            ops.AllReduceSum(src, dest, worker=worker)
    with pytest.raises(ConfigurationError, match="got 3 of dtype None"):
        ops.AllReduceMax(3, worker=worker)


def test_an_unclosed_quote_in_the_arguments_of_workers_is_refused():
    with pytest.raises(ConfigurationError, match="quote is not closed"):
        Controller(control_port=None, worker_args="--file 'a")
