"""Jobs of real processes, real sockets and real shared memory, on NumPy parameters."""

import os
import sys

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base.errors import ConfigurationError
from platoon_base.job import host_job

pytestmark = pytest.mark.base


@pytest.mark.promise
def test_a_worker_with_easgd_follows_the_equations_step_by_step(run_job, tmp_path):
    run_job(script_path("job_a_worker_with_easgd_follows_the_equations")).require_success()
    history = np.load(tmp_path / "history.npz")

    rng = np.random.default_rng(5)
    x = [rng.standard_normal((37, 11)).astype("float32"), rng.standard_normal(5)]
    c = [array.copy() for array in x]
    for step in range(12):
        x = [a - (0.1 * rng.standard_normal(a.shape)).astype(a.dtype) for a in x]
        if step % 3 == 2:
            d = [a.dtype.type(0.3) * (a - b) for a, b in zip(x, c)]
            x = [a - e for a, e in zip(x, d)]
            c = [b + e for b, e in zip(c, d)]
        for j, expected in enumerate([*x, *c]):
            np.testing.assert_array_equal(history[f"{step}_{j}"], expected)


@pytest.mark.promise
def test_every_update_of_four_workers_reaches_the_center(run_job):
    outcome = run_job(script_path("job_every_update_reaches"), workers=4).require_success()
    assert len(outcome.reported) == 4


@pytest.mark.promise
def test_a_late_worker_joins_and_starts_from_the_center(run_job):
    outcome = run_job(script_path("job_a_late_worker_joins_and_starts")).require_success()
    assert outcome.reported == {"late": "done"}


@pytest.mark.promise
def test_a_worker_with_another_model_is_refused_and_the_job_goes_on(run_job):
    outcome = run_job(script_path("job_a_worker_with_another_model_is_refused")).require_success()
    assert "got 1 parameters, and the job's model has 2" in outcome.reported["error"]


@pytest.mark.promise
def test_metrics_of_unequal_shards_are_those_of_one_process_on_all_the_data(run_job):
    outcome = run_job(script_path("job_metrics_of_unequal_shards_are_those"), workers=3).require_success()
    expected = np.random.default_rng(1).lognormal(size=1003).mean()
    for rank in range(3):
        assert outcome.reported[f"mean {rank}"] == pytest.approx(expected, rel=1e-12)
    assert outcome.reported["names"] == "mean,only 0,only 1,only 2"


@pytest.mark.parametrize(
    ("policy", "voters"), [("any", "1"), pytest.param("all", "0 1 2", marks=pytest.mark.promise), ("leader", "0")]
)
def test_the_vote_that_suffices_stops_all(run_job, policy, voters):
    outcome = run_job(
        script_path("job_the_vote_that_suffices_stops_all"), workers=3, args=(policy, voters)
    ).require_success()
    assert outcome.result.stopped_by == "enough"


@pytest.mark.parametrize(
    ("bad", "policy"), [("nan", "raise"), pytest.param("inf", "skip", marks=pytest.mark.promise), ("-inf", "restore")]
)
def test_what_is_not_finite_never_reaches_the_center(run_job, bad, policy):
    run_job(script_path("job_what_is_not_finite_never_reaches_the_center"), args=(bad, policy)).require_success()


@pytest.mark.promise
def test_a_wait_in_vain_names_the_ranks_that_are_missing(run_job, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    run_job(script_path("job_a_wait_in_vain_names_the_ranks")).require_success()


@pytest.mark.promise
def test_workers_that_wait_for_different_things_are_told_at_once(run_job):
    outcome = run_job(script_path("job_workers_that_wait_for_different_things")).require_success()
    for rank in "01":
        assert "rank 0 in 'barrier that', rank 1 in 'barrier this'" in outcome.reported[rank]


def test_all_leave_a_loop_in_the_same_round(run_job):
    outcome = run_job(script_path("job_all_leave_a_loop_in_the_same_round"), workers=3).require_success()
    assert outcome.reported == {"0": 7, "1": 7, "2": 7}


def test_a_late_worker_falls_into_step_with_the_others(run_job):
    """It skips the barrier that they have passed, and takes part in the sums from the next one on."""
    outcome = run_job(script_path("job_a_late_worker_falls_into_step")).require_success()
    assert outcome.reported == {"0": 3.0, "1": 3.0, "2": 3.0}


def test_a_forked_child_of_a_worker_ends_without_disturbing_it(run_job):
    run_job(script_path("job_a_forked_child_of_a_worker_ends")).require_success()


def test_a_joiner_that_says_it_is_the_controller_is_not_believed(run_job):
    run_job(
        script_path("job_a_joiner_that_says_it_is_the_controller"), 1
    )  # that it ends at all is the test: nobody waits for the controller to end


def test_parameters_that_change_their_shape_are_refused_and_the_center_stays(run_job):
    run_job(script_path("job_parameters_that_change_their_shape")).require_success()


@pytest.mark.promise
def test_a_stopped_worker_that_holds_a_stripe_does_not_stop_the_others(run_job):
    """It goes on only after the others have made their steps; then what they left out is caught up with."""
    run_job(script_path("job_a_stopped_worker_that_holds_a_stripe_does"), workers=3).require_success()


def test_clean_spares_the_center_of_a_job_whose_workers_have_left(run_job):
    outcome = run_job(script_path("job_clean_spares_the_center_of_a_job_whose"), workers=1)
    outcome.require_success()


@pytest.mark.promise
def test_garbage_on_the_control_socket_is_answered_and_harms_nobody(run_job):
    """Nor do requests to join with impossible process ids."""
    outcome = run_job(script_path("job_garbage_on_the_control_socket_is_answered")).require_success()
    assert outcome.result.stopped_by == "end of script"


def test_the_advisory_lock_keeps_others_out(run_job, tmp_path):
    run_job(script_path("job_the_advisory_lock_keeps_others_out"), workers=3).require_success()
    assert (tmp_path / "counter").read_text() == "600"


def test_ranks_sizes_and_seeds(run_job):
    outcome = run_job(script_path("job_ranks_sizes_and_seeds"), workers=3, seed=42).require_success()
    assert sorted(outcome.reported) == ["0", "1", "2"]
    assert len(set(outcome.reported.values())) == 3


@pytest.mark.parametrize("size", [0, -1, 100_000])
def test_a_job_of_an_impossible_size_is_refused(size):
    with pytest.raises(ConfigurationError, match=str(size)), host_job(size):
        pass


def test_a_variable_that_names_no_job_is_an_error_and_not_a_job_of_one(run_command, tmp_path):
    # In a process of its own: in this one another test may have left a worker.
    join = sys.executable, "-c", "from platoon_base import connect; connect()"
    done = run_command(*join, environment={"PLATOON_JOB": str(tmp_path)}).require(1)
    assert "unset it to run as a single worker" in done.stderr


def test_a_worker_that_fails_while_it_joins_ends(run_job):
    outcome = run_job(script_path("job_a_worker_that_fails_while_it_joins_ends"), workers=1)
    assert outcome.result.status == 1
    assert "RuntimeError: oops" in outcome.logs[0]


# Sums of arrays.


@pytest.mark.promise
def test_arrays_are_summed_to_the_same_bits_on_every_worker(run_job, tmp_path):
    outcome = run_job(script_path("job_arrays_are_summed_to_the_same_bits_on_every"), workers=3).require_success()
    assert outcome.result.status == 0
    mine = [np.load(tmp_path / f"mine{rank}.npz") for rank in range(3)]
    sums = [np.load(tmp_path / f"{rank}.npz") for rank in range(3)]
    for name in mine[0]:
        with np.errstate(invalid="ignore"):
            expected = mine[0][name].astype(float) + mine[1][name] + mine[2][name]
        for found in sums:
            np.testing.assert_array_equal(found[name], expected)
            assert found[name].tobytes() == sums[0][name].tobytes()


# Votes to stop.


def test_the_epoch_of_a_plain_loop_is_shown(run_job):
    """By `shard`, which has to be told it for the shuffle; without a shuffle 0 may be the default alone."""
    snapshots = []
    run_job(script_path("job_the_epoch_of_a_plain_loop_is_shown"), observer=snapshots.append).require_success()
    assert {rank: progress.epoch for rank, progress in snapshots[-1].progress.items()} == {0: 3, 1: 3}
