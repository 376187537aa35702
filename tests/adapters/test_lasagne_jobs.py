"""Lasagne scripts as jobs of several real processes: training, evaluation, the common stop, the shards."""

import pytest
from needing import require
from scripts_here import script_path

theano = require("theano")

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.job import single_worker
from platoon_base.sharding import Position, epoch_indices
from platoon_plugins.lasagne import StopOnPatience, evaluate, iterate_minibatches, shard

pytestmark = pytest.mark.theano


@pytest.mark.parametrize(
    ("script", "workers"),
    [
        ("prepare_is_the_longer_form", 2),
        pytest.param("workers_train_a_known_model_to_its_known_solution", 2, marks=pytest.mark.promise),
        pytest.param("sharded_evaluation_is_that_of_one_process_on_all_data", 3, marks=pytest.mark.slow),
        ("minibatches_are_the_same_when_they_are_loaded_ahead", 2),
        ("masks_and_row_numbers_go_with_the_rows", 2),
        ("two_functions_share_their_parameters_by_the_handle", 2),
    ],
)
def test_workers(run_job, script, workers):
    run_job(script_path(f"lasagne_jobs_{script}"), workers).require_success()


@pytest.mark.parametrize("how", ["finishes", "fails", "ends", "closes"])
def test_a_script_that_ends_without_finish_training_is_told_that_its_model_is_its_own(run_job, how):
    outcome = run_job(script_path("lasagne_jobs_ends_without_finish_training"), args=[how])
    assert (outcome.result.status == 0) == (how != "fails")
    told = ["without finish_training(), so it has only the model of this worker" in log for log in outcome.logs]
    assert told == [how in ("ends", "closes")] * 2, outcome.logs


@pytest.mark.promise
def test_the_rows_of_a_worker_that_fails_are_taken_over(run_job):
    outcome = run_job(script_path("lasagne_jobs_the_rows_of_a_worker_that_fails_are_taken"), workers=3)
    assert outcome.result.status == 1
    assert outcome.reported == {"0": 14.5, "2": 14.5}


@pytest.mark.parametrize("number", ["", ", epoch=epoch"])
def test_minibatches_cover_each_row_once_over_all_workers(run_job, number):
    """Calls without a number of the epoch count from 0 on."""
    outcome = run_job(
        f"""
        import numpy as np
        from platoon_plugins.lasagne import iterate_minibatches
        from platoon_base import connect

        worker = connect()
        rows = np.arange(103)
        for epoch in range(2):
            seen = np.concatenate([a for a, b in iterate_minibatches(rows, -rows, 10, shuffle=True{number})])
            worker.report({{f"{{epoch}} {{worker.global_rank}}": " ".join(map(str, seen))}})
        worker.report({{"seed": worker.seed}})
        """,
        workers=3,
    ).require_success()
    orders = []
    for epoch in range(2):
        seen = [int(i) for rank in range(3) for i in outcome.reported[f"{epoch} {rank}"].split()]
        assert sorted(seen) == list(range(103))
        orders.append(seen)
        expected = [
            epoch_indices(103, r, 3, shuffle=True, seed=int(outcome.reported["seed"]), epoch=epoch) for r in range(3)
        ]
        assert seen == np.concatenate(expected).tolist()
    assert orders[0] != orders[1]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.promise)])
def test_each_fold_has_its_own_training_and_its_own_end(run_lasagne, workers):
    """Values improve until the third epoch of each fold; at its end all workers have the center, and one saves it."""
    run_lasagne(script_path("lasagne_jobs_each_fold_has_its_own_training_and_its_own"), workers).require_success()


@pytest.mark.parametrize("rule", [pytest.param("CenterMomentum()", marks=pytest.mark.promise), "EASGD()", "DiLoCo()"])
def test_the_model_at_the_end_is_what_was_evaluated_last(run_lasagne, rule):
    """5 batches an epoch at a period of 3; one that trains after its evaluation gives its steps to the center."""
    run_lasagne(
        f"""
        from platoon_plugins.lasagne import CenterMomentum, DiLoCo
        def train_epochs(after=0):
            model = Model()
            updates = lasagne.updates.sgd(model.loss, model.params, 0.02)
            train = model.compile(sync_updates(updates, model.params, {rule}, every_n_batches=3))
            for epoch in range(3):
                for step in range(5):
                    train(X[step::8], Y[step::8])
                found = evaluate(model.error, X, Y, 6)
            for step in range(after):
                train(X[step::8], Y[step::8])
            finish_training()
            alone = float(np.mean([model.error(X[i : i + 6], Y[i : i + 6]) for i in range(0, 24, 6)]))
            assert len(set(worker.gather(alone))) == 1
            return found, alone
        found, alone = train_epochs()
        assert abs(found - alone) <= 1e-6 * alone, (found, alone)
        found, alone = train_epochs(after=1)
        assert abs(found - alone) > 1e-5 * alone, (found, alone)
        """
    ).require_success()


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("iterate_minibatches(X, Y, 4)", marks=pytest.mark.promise),
        "worker.shard(X)",
        "worker.shard(list(X))",
    ],
)
def test_splits_that_differ_between_workers_are_refused(run_job, how):
    """The second worker has a split of its own, or one of another length; what both have alike may come again."""
    outcome = run_job(
        f"""
        import numpy as np
        from platoon_plugins.lasagne import iterate_minibatches
        from platoon_base import connect
        from platoon_base.errors import ConfigurationError

        worker = connect()
        X, Y = np.arange(40.0).reshape(20, 2), np.arange(20)
        for _ in range(2):
            len(list({how}))
            X = X[::-1]
        for rows in (20, 18):
            worker.barrier(f"rows {{rows}}")
            order = np.random.RandomState(1 if rows == 18 else worker.global_rank).permutation(20)
            order = order[: rows + worker.global_rank * (rows == 18)]
            X, Y = np.arange(40.0).reshape(20, 2)[order], np.arange(20)[order]
            try:
                list({how})
            except ConfigurationError as exc:
                worker.report({{f"{{rows}} rows": str(exc)}})
        """
    ).require_success()
    for text in outcome.reported["20 rows"], outcome.reported["18 rows"]:
        assert "differs between rank" in text
        assert "random_state=0" in text


def test_alone_minibatches_are_the_classic_ones(solo_worker):
    x, y = np.arange(20).reshape(10, 2), np.arange(10)
    got = list(iterate_minibatches(x, y, 4, worker=solo_worker))
    rest = list(iterate_minibatches(x, y, 4, skip=2, worker=solo_worker))
    assert all((a == b).all() for one, other in zip(got[2:], rest) for a, b in zip(one, other))
    assert len(rest) == len(got) - 2
    assert [len(b) for _, b in got] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([a for a, _ in got]), x)
    np.testing.assert_array_equal(np.concatenate([b for _, b in got]), y)


def test_a_loop_that_begins_anew_in_a_resumed_job_is_told(solo_worker, monkeypatch, caplog):
    """Once, at its first epoch; an evaluation without an epoch says nothing, and neither does a loop that goes on."""
    monkeypatch.setattr(solo_worker, "resume_at", Position(3, 2, 32))
    x = np.arange(6)
    list(iterate_minibatches(x, 2, worker=solo_worker))
    assert not caplog.records
    for epoch in range(2):
        list(iterate_minibatches(x, 2, epoch=epoch, worker=solo_worker))
    assert caplog.text.count("was at epoch 3, mini-batch 2, and its loop starts again at epoch 0") == 1
    caplog.clear()
    without_skip = single_worker()
    monkeypatch.setattr(without_skip, "resume_at", Position(3, 2, 32))
    list(iterate_minibatches(x, 2, epoch=3, worker=without_skip))
    without_skip.close()
    assert "starts again at epoch 3, mini-batch 0" in caplog.text
    caplog.clear()
    going_on = single_worker()
    monkeypatch.setattr(going_on, "resume_at", Position(3, 2, 32))
    for epoch in (3, 4):
        list(iterate_minibatches(x, 2, epoch=epoch, skip=going_on.resume_at.done_in(epoch), worker=going_on))
    going_on.close()
    assert not caplog.records


def test_alone_patience_stops_by_the_rule(solo_worker):
    stop = StopOnPatience(2, worker=solo_worker)
    assert [stop(v) for v in (3.0, 2.0, 2.0)] == [False, False, False]
    assert stop.best == 2.0
    assert stop.reason == ""
    assert stop(2.5)
    assert stop.reason == "no improvement in 2 evaluations"
    assert not solo_worker.should_stop
    assert [StopOnPatience(2, worker=solo_worker)(v) for v in (3.0, 2.0, 1.0)] == [False, False, False]


def test_patience_goes_on_in_a_worker_that_is_started_again(run_job):
    run_job(
        script_path("lasagne_jobs_patience_goes_on_in_a_worker_that_is_started"),
        1,
        max_restarts=1,
    ).require_success()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda w: evaluate(None, [1, 2], [1], 1, worker=w), "the same number of rows"),
        (lambda w: evaluate(None, [], [], 1, worker=w), "at least one"),
        (lambda w: evaluate(None, [1], [1], 0, worker=w), "batch_size"),
        (lambda w: list(iterate_minibatches(np.ones(3), np.ones(2), 1, worker=w)), "the same number of rows"),
        (lambda w: list(iterate_minibatches(np.ones(3), np.ones(3), 0, worker=w)), "batch_size"),
        (lambda w: shard(np.ones(3), np.ones(4), worker=w), "the same number of rows"),
        (lambda w: list(iterate_minibatches(np.ones(3), np.ones(3), 1, skip=-1, worker=w)), "skip"),
        (lambda w: StopOnPatience(0, worker=w), "patience"),
        (lambda w: iterate_minibatches(worker=w), "no arrays"),
        (lambda w: evaluate(None, [1], worker=w), "batch_size=None"),
        (lambda w: evaluate(None, [1], num_slices=0, worker=w), "num_slices=0"),
        (lambda w: evaluate(None, [1], batch_size=1, num_slices=1, worker=w), "pass one of them"),
        (lambda w: iterate_minibatches(np.ones(3), np.ones(3), 1, True, 4, worker=w), "got 4 after the arrays"),
        (lambda w: evaluate(None, [1], 1, w), "got .*Worker.* after the arrays: pass arrays, then batch_size, and the"),
    ],
)
def test_bad_arguments_are_refused(solo_worker, call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call(solo_worker)
