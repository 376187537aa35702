"""Synchronization inside the compiled function: every update rule of Lasagne, the Op, the graph optimization."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest
from needing import require

theano = require("theano")

import lasagne
import theano.tensor as T
from lasagne_rules import RULES, WITH_GRADIENTS

from platoon_base.errors import ConfigurationError, NonFiniteError
from platoon_base.theano_ops import Sync
from platoon_plugins.lasagne import ASGD, EASGD, all_reduce_grads, finish_training, sync_updates

pytestmark = pytest.mark.theano


def make_params():
    rng = np.random.RandomState(3)
    floatx = theano.config.floatX
    return [
        theano.shared(rng.randn(4, 3).astype(floatx), name="W"),
        theano.shared(rng.randn(3).astype(floatx), name="b"),
    ]


def make_loss(params):
    w, b = params
    x = T.matrix("x")
    return x, T.sqr(T.dot(x, w) + b).mean()


def compiled(params, worker, rate=0.1, rule=None, **options):
    """Return a training function of plain gradient descent and its updates."""
    x, loss = make_loss(params)
    updates = sync_updates(lasagne.updates.sgd(loss, params, rate), params, rule or EASGD(), worker=worker, **options)
    return theano.function([x], loss, updates=updates)


def batches(count):
    rng = np.random.RandomState(7)
    return [rng.randn(5, 4).astype(theano.config.floatX) for _ in range(count)]


@pytest.fixture
def job_worker(job_of_one):
    """The only worker of a real job, with a center in shared memory."""
    return job_of_one


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_of_lasagne_is_synchronized_as_the_equations_say(job_worker, name):
    """Against the same rule compiled without us, whose parameters are synchronized by hand between the calls."""
    ours, theirs = make_params(), make_params()
    x, loss = make_loss(ours)
    updates = sync_updates(RULES[name](loss, ours), ours, EASGD(0.25), every_n_batches=3, worker=job_worker)
    step = theano.function([x], loss, updates=updates)
    x, loss = make_loss(theirs)
    plain = theano.function([x], loss, updates=RULES[name](loss, theirs))
    center = [p.get_value() for p in theirs]
    for i, batch in enumerate(batches(10)):
        np.testing.assert_allclose(step(batch), plain(batch), rtol=1e-6)
        if i % 3 == 2:
            for parameter, c in zip(theirs, center):
                value = parameter.get_value()
                d = value.dtype.type(0.25) * (value - c)
                parameter.set_value(value - d)
                c += d
        for a, b in zip(ours, theirs):
            np.testing.assert_allclose(a.get_value(), b.get_value(), rtol=1e-5, atol=1e-7)


def test_no_rule_of_lasagne_is_forgotten():
    assert set(lasagne.updates.__all__) - set(WITH_GRADIENTS) == set(RULES)


@pytest.mark.parametrize("name", sorted(RULES))
def test_alone_the_updates_are_as_they_were(solo_worker, name):
    params = make_params()
    updates = RULES[name](make_loss(params)[1], params)
    wrapped = sync_updates(updates, params, EASGD(), worker=solo_worker)
    assert isinstance(wrapped, OrderedDict)
    assert list(wrapped.items()) == list(updates.items())


def test_a_step_without_a_synchronization_copies_no_parameter(job_worker):
    params = make_params()
    step = compiled(params, job_worker, every_n_batches=1000)
    (node,) = [n for n in step.maker.fgraph.toposort() if isinstance(n.op, Sync)]
    assert node.op.inplace == (0, 1)
    assert node.op.destroy_map == {0: [0], 1: [1]}
    seen = []
    synchronizer = node.op.synchronizer
    original = synchronizer.step
    synchronizer.step = lambda arrays: (seen.append([a.ctypes.data for a in arrays]), original(arrays))
    step.fn.allow_gc = False
    step(batches(1)[0])
    assert seen == [[p.get_value(borrow=True).ctypes.data for p in params]]


def test_in_place_where_theano_allows_it_and_a_copy_where_not(job_worker):
    """The new value of one parameter is at the same time that of another variable, which must not change."""
    params = make_params()
    mirror = theano.shared(params[1].get_value(), name="mirror")
    x, loss = make_loss(params)
    updates = lasagne.updates.sgd(loss, params, 0.1)
    wrapped = sync_updates(updates, params, EASGD(0.5), every_n_batches=1, worker=job_worker)
    wrapped[mirror] = updates[params[1]]
    step = theano.function([x], loss, updates=wrapped)
    start = params[1].get_value()
    step(batches(1)[0])
    raw, synced = mirror.get_value(), params[1].get_value()
    assert (raw != synced).any()
    np.testing.assert_allclose(synced, raw - 0.5 * (raw - start), rtol=1e-6)


def test_a_compiled_function_cannot_be_pickled_and_says_what_to_do(job_worker):
    step = compiled(make_params(), job_worker)
    with pytest.raises(ConfigurationError, match="save the parameters"):
        pickle.dumps(step)


def test_a_value_that_is_not_finite_is_an_error_that_names_the_parameter(job_worker):
    params = make_params()
    step = compiled(params, job_worker, every_n_batches=1)
    with pytest.raises(NonFiniteError, match=r"rank 0, step 1: element 0 of W"):
        step(np.full((5, 4), np.nan, theano.config.floatX))
    with job_worker.center_params():
        assert all(np.isfinite(p.get_value()).all() for p in params)


# By hand, as there may be two workers. Steps of AveragedEASGD become 2 sqrt(2) times as long, by the 50th
# synchronization, and of the first, so scaled, pull = 0.5 is taken back. Of one step of 1 away from the center
# CenterMomentum takes back alpha = 0.9 / 2; the mean pull is (1 - sqrt(mu)) alpha, and moves worker and center
# 1.35 sqrt(2) times as far; at a period of 2 mu is the fifth root of 0.9.
@pytest.mark.parametrize(
    ("period", "step", "moved"),
    [
        pytest.param(1, 1.0, 0.5 * (1 + (2 * 2**0.5 - 1) / 50), id="averaged EASGD"),
        pytest.param(2, 0.5, 0.55 + 1.35 * 2**0.5 * (1 - 0.9**0.1) * 0.45, id="center momentum at a longer period"),
    ],
)
def test_the_rule_if_none_is_named(job_worker, period, step, moved):
    params = make_params()
    start = [p.get_value() for p in params]
    options = {"every_n_batches": period} if period > 1 else {}
    updates = sync_updates({p: p + step for p in params}, params, worker=job_worker, **options)
    train = theano.function([], updates=updates)
    for _ in range(period):
        train()
    for value, first in zip(params, start):
        np.testing.assert_allclose(value.get_value(), first + moved, rtol=1e-5, atol=1e-6)


def averaged(params, worker):
    return lasagne.updates.sgd(all_reduce_grads(make_loss(params)[1], params, worker=worker), params, 0.1)


@pytest.mark.parametrize("rule", ["auto", None])
def test_averaged_gradients_are_not_synchronized(job_worker, rule):
    params = make_params()
    updates = averaged(params, job_worker)
    wrapped = sync_updates(updates, params, rule, worker=job_worker)
    assert list(wrapped.items()) == list(updates.items())
    assert not job_worker.advanced.sharing
    finish_training(worker=job_worker)


def test_a_rule_that_is_named_holds_with_averaged_gradients_too(job_worker):
    params = make_params()
    sync_updates(averaged(params, job_worker), params, ASGD(), worker=job_worker)
    assert job_worker.advanced.shares


def test_the_next_training_has_a_rule_of_its_own(job_worker):
    params = make_params()
    sync_updates(averaged(params, job_worker), params, worker=job_worker)
    finish_training(worker=job_worker)
    sync_updates({p: p for p in params}, params, worker=job_worker)
    assert job_worker.advanced.shares


X = T.matrix("x")


def one_averaged(w, b, worker, rule):
    all_reduce_grads((w**2).sum(), [w], worker=worker)
    sync_updates({w: w, b: b}, [w, b], rule, worker=worker)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w, b, on: sync_updates({X: X}, [X], EASGD(), worker=on), "shared variables"),
        (lambda w, b, on: sync_updates({w: w, b: b}, [w, b], EASGD, worker=on), r"pass a rule, such as EASGD\(\)"),
        (lambda w, b, on: sync_updates({w: w, b: b}, [w, b], "easgd", worker=on), r"pass a rule, such as EASGD\(\)"),
        (lambda w, b, on: sync_updates({w: w, b: b}, [w, b], 0.5, worker=on), r"pass a rule, such as EASGD\(\)"),
        (lambda w, b, on: one_averaged(w, b, on, "auto"), "and the gradients of b are not averaged: pass a rule"),
        (lambda w, b, on: one_averaged(w, b, on, None), "and the gradients of b are not averaged: pass a rule"),
        (lambda w, b, on: sync_updates({w: w, b: b}, [w, b], None, worker=on), "rule=None, and the gradients of W, b"),
        (
            lambda w, b, on: sync_updates(averaged([w, b], on), [w, b], on_nonfinite="skip", worker=on),
            "got on_nonfinite='skip' and no rule",
        ),
        (lambda w, b, on: sync_updates({w: w}, [w, b], EASGD(), worker=on), "no update for b"),
        (lambda w, b, on: sync_updates([], [w, b], EASGD(), worker=on), "lasagne.updates"),
    ],
)
def test_what_cannot_work_is_refused(solo_worker, call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call(*make_params(), solo_worker)


def test_a_second_call_is_refused(solo_worker):
    params = make_params()
    updates = {p: p for p in params}
    sync_updates(updates, params, ASGD(), worker=solo_worker)
    with pytest.raises(ConfigurationError, match="already.* finish_training.* worker.sync_params"):
        sync_updates(updates, params, ASGD(), worker=solo_worker)
    finish_training(worker=solo_worker)
    sync_updates(updates, params, ASGD(), worker=solo_worker)
    solo_worker.release_shared_params()
    sync_updates(updates, params, ASGD(), worker=solo_worker)


def test_a_function_whose_training_is_finished_is_refused(job_worker):
    """It must not bring the values of one training into the center of the next."""
    params, others = make_params(), make_params()
    step = theano.function([], updates=sync_updates({p: p * 2 for p in params}, params, ASGD(), worker=job_worker))
    step()
    finish_training(worker=job_worker)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="parameters that were released: compile"):
            step()
        sync_updates({p: p for p in others}, others, ASGD(), worker=job_worker)
        job_worker.copy_to_global()
        job_worker.release_shared_params()
