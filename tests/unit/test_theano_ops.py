"""Collective calls inside the compiled function: values, gradients, graph optimizations, one order on all workers."""

import copy
import functools
import os
import pickle

import numpy as np
import pytest
from needing import require
from programs import run_python
from scripts_here import script_path

theano = require("theano")

import theano.tensor as T

import platoon_base.theano_ops
from platoon_base.collectives.base import canonical_op
from platoon_base.errors import ConfigurationError, PlatoonWarning
from platoon_base.job import single_worker
from platoon_base.rules import EASGD
from platoon_base.theano_ops import (
    AllReduce,
    Sync,
    Synchronizer,
    all_reduce,
    decay_as_one_process,
    decay_defaults,
)
from platoon_base.theano_ops.base import JobOp, next_turn
from platoon_base.theano_ops.function_graph import Combined, require_reductions
from platoon_base.worker import Fit

pytestmark = pytest.mark.theano

REDUCTIONS = ["sum", "prod", "max", "min", "mean"]
OPS = [functools.partial(AllReduce, reduction=name) for name in REDUCTIONS]
AllReduceSum, AllReduceProd, AllReduceMax, AllReduceMin, AllReduceMean = OPS


@pytest.fixture
def worker():
    """A worker of a job of one, whose collective calls return what they are given."""
    with single_worker() as worker:
        yield worker


def test_the_face_has_all_that_it_offers():
    """Some names are imported only when they are asked for, so a wrong one would show late."""
    assert [name for name in platoon_base.theano_ops.__all__ if not hasattr(platoon_base.theano_ops, name)] == []


def test_a_worker_without_rows_adds_nothing_to_a_maximum(worker):
    combined = Combined(["max", "min", "max"])
    for value, counted in ((-3, True), (7, False)):
        combined.add([np.float32(value), np.float32(value), np.int8(value)], 1, counted)
    assert combined.over(worker, [1], 10) == [-3, -3, -3]


def test_an_unknown_reduction_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigurationError, match="got reduce='foo': it must be one of 'mean', .*, 'gather', None"):
        require_reductions("foo", 2)
    with pytest.raises(ConfigurationError, match=r"got op='-': it must be one of sum, .*, \+, add,"):
        canonical_op("-")
    assert require_reductions(["avg", "gather", None], 3) == ["mean", "gather", None]


def nodes(function):
    return [node for node in function.maker.fgraph.toposort() if isinstance(node.op, JobOp)]


@pytest.mark.parametrize(
    "script",
    [
        "values_of_all_ops_dtypes_and_shapes",
        "gradients_are_those_of_the_sum_of_all_costs",
        pytest.param("a_worker_that_has_left_is_an_error_of_the_others", marks=pytest.mark.slow),
        "workers_combine_by_what_they_have_loaded",
        pytest.param("a_loop_takes_part_in_the_order_as_a_whole", marks=pytest.mark.slow),
    ],
)
def test_workers(run_job, script):
    run_job(script_path(f"theano_ops_{script}")).require_success()


def test_workers_whose_functions_differ_in_other_things_make_the_same_calls(run_job):
    """Without a common order, the sum of one would meet the maximum of the other; hashes differ between the two."""
    run_job(
        script_path("theano_ops_workers_whose_functions_differ"),
        environment={"PYTHONHASHSEED": "random"},
    ).require_success()


@pytest.mark.slow
def test_the_order_is_the_same_for_all_hashes_addresses_and_other_outputs():
    script = script_path("theano_ops_order_of_a_model")
    orders = []
    for seed, words in (("1", ["0"]), ("2", ["5000"]), ("3", ["77", "more outputs"])):
        flags = f"{os.environ.get('THEANO_FLAGS', '')},linker=py"  # nothing runs, so nothing is compiled
        environment = {**os.environ, "PYTHONHASHSEED": seed, "THEANO_FLAGS": flags.lstrip(",")}
        orders.append(run_python(script, *words, env=environment, timeout=400).stdout)
    assert orders[0] == orders[1]
    calls = [[line for line in order.splitlines() if line.startswith("call")] for order in orders]
    assert calls[0] == calls[2]
    assert len(calls[0]) > 2


@pytest.mark.slow
def test_calls_that_can_be_one_become_one(worker):
    x, y = T.fvector("x"), T.fvector("y")
    outputs = [AllReduceSum(worker)(x * 2), AllReduceSum(worker)(y * 3), AllReduceSum(worker)(x * 4, y)[1]]
    (node,) = nodes(theano.function([x, y], outputs))
    assert len(node.inputs) == 4
    assert not node.op.ordered


def test_gradients_join_other_calls_where_hosts_compress_nothing(worker):
    x, y = T.fvectors("xy")
    averages = AllReduceMean(worker, compress=True)(x), AllReduceMean(worker)(y)
    assert len(nodes(theano.function([x, y], averages))) == 1


def test_calls_that_need_one_another_stay_apart_and_the_others_join_them(worker):
    x = T.fvector("x")
    first = AllReduceSum(worker)(x)
    second = AllReduceSum(worker)(first + 1)
    alone = AllReduceSum(worker)(x * 2)
    one, two = nodes(theano.function([x], [second, alone]))
    assert (len(one.inputs), len(two.inputs)) == (3, 2)  # the last is the token
    assert two.inputs[-1].owner is one


def test_the_token_runs_through_calls_of_all_kinds(worker):
    x = T.fvector("x")
    outputs = [op(worker)(x * i) for i, op in enumerate(OPS)]
    found = nodes(theano.function([x], outputs[::-1]))
    assert [node.op.reduction for node in found] == REDUCTIONS
    assert all(node.op.ordered for node in found)
    for before, after in zip(found, found[1:]):
        assert after.inputs[-1].owner is before


def test_two_jobs_are_not_ordered_with_one_another(worker):
    x = T.fvector("x")
    with single_worker() as other:
        found = nodes(theano.function([x], [AllReduceSum(worker)(x), AllReduceSum(other)(x)]))
    assert len(found) == 2
    assert not any(node.op.ordered for node in found)


def test_each_call_is_made_even_if_two_are_alike(worker):
    op, x = AllReduceSum(worker), T.fvector("x")
    (node,) = nodes(theano.function([x], [op(x), op(x)]))
    assert len(node.inputs) == 2


def test_in_place_where_a_value_is_nobody_elses(worker):
    x, y = T.fvector("x"), T.fvector("y")
    z = y * 3
    outputs = AllReduceMax(worker)(x * 2, y, z, z[1:])
    (node,) = nodes(theano.function([x, y], outputs))
    assert node.op.inplace == (0,)  # y is an input of the function, and z has a view on it
    assert node.op.destroy_map == {0: [0]}


def test_a_value_that_is_needed_elsewhere_stays(worker):
    x = T.fvector("x")
    y, z = x * 2, x * 3
    function = theano.function([x], [*AllReduceSum(worker)(y, z), y.reshape((1, -1))])
    (node,) = nodes(function)
    assert node.op.inplace == (1,)
    reduced, _, kept = function([1, 2])
    np.testing.assert_array_equal(reduced, [2, 4])
    assert not np.shares_memory(reduced, kept)


def test_theanos_own_checks_find_nothing(worker):
    """DebugMode compares memory before and after, with and without each optimization."""
    x, y = T.fmatrix("x"), T.fvector("y")
    a, b = AllReduceSum(worker)(x * 2, y + 1)
    outputs = [a, b, AllReduceMax(worker)(x.T * 3), AllReduceMean(worker)(y * a.sum())]
    mode = theano.compile.debugmode.DebugMode(stability_patience=2, check_c_code=False)
    found = theano.function([x, y], outputs, mode=mode)(np.ones((2, 3), "float32"), np.ones(2, "float32"))
    for value, expected in zip(found, (2, 2, 3, 12)):
        np.testing.assert_array_equal(value, np.full(value.shape, expected))


def test_a_shape_is_known_without_a_call(worker):
    x, s = T.fmatrix("x"), T.fscalar("s")
    y, z = AllReduceMean(worker)(x * 2, s)
    function = theano.function([x, s], [y.shape, z.shape], on_unused_input="ignore")
    assert nodes(function) == []
    assert [shape.tolist() for shape in function(np.zeros((2, 3), "float32"), 1)] == [[2, 3], []]


def test_constants_are_not_folded(worker):
    assert len(nodes(theano.function([], AllReduceSum(worker)(T.constant(2.0) * 2)))) == 1


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "mean", "+", "average"])
def test_alone_the_variables_are_as_they_were(worker, op):
    x, y = T.fvector("x"), T.fscalar("y")
    assert all_reduce(x, y, op=op, worker=worker) == [x, y]


def test_a_copy_works_in_the_same_job(worker):
    x = T.fvector("x")
    function = theano.function([x], AllReduceSum(worker)(x))
    for again in (function.copy(), copy.deepcopy(function)):
        np.testing.assert_array_equal(np.ravel(again([1, 2])), [1, 2])
        assert nodes(again)[0].op.worker is worker


def test_a_pickled_all_reduce_belongs_to_the_worker_of_the_process_that_loads_it(worker, monkeypatch):
    """Later calls come behind the one that was loaded."""
    x = T.fvector("x")
    function = theano.function([x], AllReduceMean(worker, turn=10**6)(x * 2))
    saved = pickle.dumps(function)
    with single_worker() as other:
        monkeypatch.setattr("platoon_base.theano_ops.reductions.connect", lambda: other)
        loaded = pickle.loads(saved)
        (node,) = nodes(loaded)
        assert node.op.worker is other
        assert (node.op.turn, node.op.inplace, node.op.reduction) == (10**6, nodes(function)[0].op.inplace, "mean")
        assert next_turn() > 10**6
        np.testing.assert_array_equal(loaded([1, 2]), [2, 4])


def test_what_cannot_work_is_refused(worker):
    with pytest.raises(ConfigurationError, match="no variable"):
        all_reduce(worker=worker)
    with pytest.raises(ConfigurationError, match="one by one"):
        all_reduce([T.fvector()], worker=worker)
    with pytest.raises(ConfigurationError, match="'median'"):
        all_reduce(T.fvector(), op="median", worker=worker)
    with pytest.raises(ConfigurationError, match="no value"):
        AllReduceMin(worker)()
    with pytest.raises(ConfigurationError, match="x of dtype complex64"):
        AllReduceProd(worker)(T.cvector("x"))


def test_a_synchronization_takes_part_in_the_order(job_of_one):
    worker = job_of_one
    w = theano.shared(np.zeros(3, "float32"), name="w")
    worker.init_shared_params([w], EASGD(0.5))
    fit = Fit(worker)
    fit.begin(EASGD(0.5), 1)
    x = T.fvector("x")
    first = AllReduceSum(worker)(x)
    synced = Sync(Synchronizer(fit))(w + x)
    last = AllReduceMax(worker)(x)
    function = theano.function([x], [last, first], updates=[(w, synced)])
    assert [getattr(node.op, "reduction", "sync") for node in nodes(function)] == ["sum", "sync", "max"]
    assert nodes(function)[1].op.inplace == (0,)
    np.testing.assert_array_equal(function([1, 2, 3])[0], [1, 2, 3])
    np.testing.assert_array_equal(w.get_value(), [0.5, 1, 1.5])


X, V, DECAY = T.fvector("x"), theano.shared(np.zeros(3, "f4"), "v"), theano.shared(np.float32(0.8))
ONE = theano.shared(np.float32(1))
MOVING_AVERAGES = {
    "of Keras 2": V * 0.99 + X * (1.0 - 0.99),
    "of Lasagne": 0.9 * V + 0.1 * (X + 0 * V),
    "as a difference": V - 0.1 * (V - X),
    "divided": V + (X - V) / 4,
    "a shared decay": DECAY * V + (1 - DECAY) * X,
    "a shared decay of 1": ONE * V + X / 8,
    "cast": T.cast(0.7 * V.astype("float64") + 0.3 * X, "float32"),
    "not averaged": X,
}


@pytest.mark.parametrize("name", sorted(MOVING_AVERAGES))
def test_a_moving_average_decays_in_a_step_as_in_several_of_one_process(name):
    first, x = np.array([1, -2, 3], "f4"), np.array([5, 0, -1], "f4")
    V.set_value(first)
    step = theano.function([X], updates=[(V, MOVING_AVERAGES[name])])
    for _ in range(3):
        step(x)
    expected = V.get_value()
    V.set_value(first)
    updates = decay_as_one_process([(V, MOVING_AVERAGES[name])], 3)
    theano.function([X], updates=updates)(x)
    np.testing.assert_allclose(V.get_value(), expected, rtol=1e-5)
    values = []
    for function in (step, theano.function([X], updates=decay_as_one_process(updates, 1))):  # resumed by one process
        V.set_value(first)
        function(x)
        values.append(V.get_value())
    np.testing.assert_allclose(*values, rtol=1e-6)


def test_updates_that_are_no_moving_averages_stay_as_they_are():
    counts = [(V, V + 1)]
    assert decay_as_one_process(counts, 3) == counts
    noise = theano.shared(np.zeros(3, "f4"), "noise")
    noise.default_update = noise**2 + X
    before = noise.default_update
    with pytest.warns(PlatoonWarning, match="statistics noise that are not moving averages with a constant decay"):
        decay_defaults([noise, V], 3)
    assert noise.default_update is before
