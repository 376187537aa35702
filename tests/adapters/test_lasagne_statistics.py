"""Running statistics under Lasagne: averaged when workers meet, given to all at first; noise that differs by rank."""

import os

import pytest
from needing import require
from scripts_here import script_path

theano = require("theano")

import lasagne
import numpy as np
from saved_arrays import load

from platoon_base.errors import ConfigurationError
from platoon_plugins.lasagne import EASGD, all_reduce_grads, sync_updates

pytestmark = pytest.mark.theano

# `LASAGNE=/path/to/a/checkout` puts the development version, which has BatchNormLayer, in front.
CHECKOUT = os.environ.get("LASAGNE", "")
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(filter(None, [CHECKOUT, os.environ.get("PYTHONPATH")]))}
needs_development = pytest.mark.skipif(
    not CHECKOUT and not hasattr(lasagne.layers, "BatchNormLayer"),
    reason="needs Lasagne's development version: LASAGNE=/path/to/a/checkout make test",
)
LAYERS = [
    pytest.param("BatchNorm", id="a layer of the test"),
    pytest.param("lasagne.layers.BatchNormLayer", id="BatchNormLayer", marks=needs_development),
]
WAYS = {
    "asynchronous": "sync_updates(lasagne.updates.sgd(model.loss, model.params, 0.05), model.params, EASGD(), 2)",
    "synchronous": "lasagne.updates.sgd(all_reduce_grads(model.loss, model.params), model.params, 0.05)",
}
TRAINED = """
model = Model({layer})
train = model.compile({updates})
for epoch in range(3):
    for x, y in iterate_minibatches(X, Y, 4):
        train(x, y)
own = model.values(model.statistics)
expected = averaged(own)
apart = max(abs(a - b).max() for a, b in zip(own, expected))
assert apart > 1e-3, apart

def by_hand():
    # What one process reports that has the parameters which are in the model now, and the averaged statistics.
    known = dict(zip([p.name for p in model.params], model.values(model.params)))
    scale = known["bn.gamma"] * expected[1] if "bn.gamma" in known else 1.0
    normal = (X - expected[0]) * scale + known["bn.beta"]
    return np.mean((normal.dot(known["out.W"]).ravel() + known["out.b"] - Y) ** 2)
"""


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("way", [pytest.param("asynchronous", marks=pytest.mark.promise), "synchronous"])
def test_evaluate_is_what_one_process_reports_with_averaged_statistics(run_lasagne, way, layer):
    outcome = run_lasagne(
        TRAINED.format(layer=layer, updates=WAYS[way])
        + """
with worker.center_params():
    wanted = by_hand()
worker.barrier("seen")
found = evaluate(model.error, X, Y, batch_size=5)
np.testing.assert_allclose(found, wanted, rtol=1e-4)
for value, average in zip(model.values(model.statistics), expected):
    np.testing.assert_allclose(value, average, rtol=1e-6)
# At the end, after some more steps: the same model on every worker.
for x, y in iterate_minibatches(X, Y, 4):
    train(x, y)
expected = averaged(model.values(model.statistics))
finish_training()
assert not worker.advanced.shares
np.testing.assert_allclose(model.error(X, Y), by_hand(), rtol=1e-4)
for value in model.values(model.params + model.statistics):
    everywhere = worker.advanced.sum_arrays("values", [value]).arrays[0] / size
    np.testing.assert_array_equal(value, everywhere.astype("f4"))
worker.report({str(rank): found})
""",
        environment=ENVIRONMENT,
    ).require_success()
    assert outcome.reported["0"] == outcome.reported["1"]


def test_the_first_workers_statistics_are_given_to_all(run_lasagne):
    run_lasagne(
        f"""
        model = Model()
        model.statistics[0].set_value(np.full(3, 1.0 + rank, "f4"))
        updates = {WAYS["synchronous"]}
        assert (model.statistics[0].get_value() == 1).all()
        """
    ).require_success()


def test_statistics_that_are_not_finite_or_of_a_worker_just_started_again_count_for_nothing(run_lasagne):
    run_lasagne(
        f"""
        import os
        model = Model()
        mean = model.statistics[0]
        updates = {WAYS["asynchronous"]}
        if not worker.late:
            mean.set_value(np.full(3, 1.0 + rank, "f4"))
            evaluate(model.error, X, Y, 5)
            assert (mean.get_value() == 1.5).all()
            mean.set_value(np.full(3, np.nan if rank else 7.0, "f4"))
            evaluate(model.error, X, Y, 5)
            assert (mean.get_value() == 7).all()
            if rank:
                os.kill(os.getpid(), 9)
        while len(worker.advanced.meet("both are there")) < 2:
            pass
        evaluate(model.error, X, Y, 5)
        assert (mean.get_value() == 7).all(), mean.get_value()
        """,
        max_restarts=1,
    ).require_success()


def test_a_worker_that_came_later_begins_the_next_training_with_the_others(run_lasagne):
    """It has met them at the end of the one before, so they wait for it, and it comes."""
    run_lasagne(
        f"""
        import os, pathlib, subprocess
        from watching import await_file
        begun = pathlib.Path(sys.argv[1], "begun")
        for fold in range(2):
            model = Model()
            model.statistics[0].set_value(np.full(3, fold + 1.0 + rank, "f4"))
            updates = {WAYS["asynchronous"]}
            if fold or not worker.late:
                assert (model.statistics[0].get_value() == fold + 1).all()
            if fold and worker.late:
                await_file(begun)  # the others begin without anything else of this one
            elif fold:
                begun.touch()
            elif not worker.late:
                if rank == 0:
                    others = {{k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}}
                    later = subprocess.Popen([sys.executable, *sys.argv], env=others)
                while len(worker.advanced.meet("the late one is there")) <= 1:
                    pass
            else:
                worker.advanced.meet("the late one is there")
            finish_training()
        if rank == 0:
            assert later.wait(100) == 0
        """,
        workers=1,
        environment={**ENVIRONMENT, "PLATOON_TIMEOUT_S": "30"},
    ).require_success()


@pytest.mark.promise
def test_statistics_in_the_updates_are_named_by_the_user(run_lasagne):
    run_lasagne(script_path("lasagne_statistics_statistics_in_the_updates_are_named")).require_success()


@pytest.mark.parametrize(
    "wrong", ["name", np.ones(3), theano.shared(np.ones(3, "complex64"))], ids=["text", "array", "complex"]
)
def test_what_cannot_be_averaged_is_refused_as_a_statistic(solo_worker, wrong):
    w = theano.shared(np.ones(3), name="w")
    with pytest.raises(ConfigurationError, match="batch_norm_stat=True"):
        sync_updates({w: w}, [w], EASGD(), statistics=[wrong], worker=solo_worker)
    with pytest.raises(ConfigurationError, match="batch_norm_stat=True"):
        all_reduce_grads((w**2).sum(), [w], statistics=[wrong], worker=solo_worker)


MASKS = """
np.random.seed(1)
x = T.fmatrix("x")
network = lasagne.layers.InputLayer((None, 40), x)
network = lasagne.layers.DropoutLayer(lasagne.layers.DenseLayer(network, 40, nonlinearity=None), 0.5)
params = lasagne.layers.get_all_params(network, trainable=True)
start = params[0].get_value()
output = lasagne.layers.get_output(network)
loss = T.sqr(output).mean()
updates = {updates}
train = theano.function([x], output, updates=updates)
drawn = [np.asarray(train(np.ones((4, 40), "f4"))) == 0 for _ in range(5)]
np.savez(f"{{sys.argv[1]}}/{{rank}} {way}.npz", start=start, drawn=drawn)
"""


@pytest.mark.parametrize(
    ("way", "updates"),
    [
        pytest.param(
            "sync_updates",
            "sync_updates(lasagne.updates.sgd(loss, params, 0.1), params, EASGD())",
            marks=pytest.mark.promise,
        ),
        ("all_reduce_grads", "lasagne.updates.sgd(all_reduce_grads(loss, params), params, 0.1)"),
    ],
)
def test_with_a_seed_of_the_script_masks_differ_by_rank_and_weights_do_not(run_lasagne, tmp_path, way, updates):
    found = {}
    for name, text, workers in (("plain", "lasagne.updates.sgd(loss, params, 0.1)", 1), ("ours", updates, 3)):
        run_lasagne(MASKS.format(updates=text, way=name), workers).require_success()
        for rank in range(workers):
            found[name, rank] = load(tmp_path / f"{rank} {name}.npz")
    for rank in range(3):
        np.testing.assert_array_equal(found["ours", rank]["start"], found["plain", 0]["start"])
    np.testing.assert_array_equal(found["ours", 0]["drawn"], found["plain", 0]["drawn"])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        same = found["ours", one]["drawn"] == found["ours", other]["drawn"]
        assert 0.3 < same.mean() < 0.7  # masks of 800 independent fair draws
