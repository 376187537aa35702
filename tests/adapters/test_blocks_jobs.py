"""Main loops of Blocks on several workers: asynchronous and synchronous training, and how they end together."""

import pytest
from needing import require
from scripts_here import script_path

require("blocks.main_loop")

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("script", "workers"),
    [
        pytest.param("easgd_follows_its_equations_and_ends_with_the_center", 2, marks=pytest.mark.promise),
        pytest.param("every_trigger_of_a_simple_extension_synchronizes", 2, marks=pytest.mark.slow),
        pytest.param("averaged_gradients_equal_large_batches", 3, marks=[pytest.mark.promise, pytest.mark.slow]),
        ("without_a_rule_the_algorithm_decides", 2),
        ("updates_of_ones_own_and_a_schedule_equal_large_batches", 2),
        ("two_main_loops_one_after_the_other_and_one_twice", 2),
        pytest.param("averaged_gradients_stop_after_the_same_batch", 2, marks=pytest.mark.slow),
        pytest.param("asynchronous_workers_stop_together", 2, marks=pytest.mark.slow),
        ("a_worker_that_ends_alone_leaves_and_the_others_go_on", 2),
        ("dropout_differs_between_workers", 2),
        ("a_worker_closed_before_the_end_is_refused", 2),
    ],
)
def test_workers(run_blocks, script, workers):
    run_blocks(script_path(f"blocks_jobs_{script}"), workers).require_success()


def test_workers_learn_together_and_only_the_first_prints(run_blocks, tmp_path):
    outcome = run_blocks(
        """
        cost, error = network()
        valid = stream(60, seed=1)
        extensions = [
            DistributedMonitoring([cost, error], valid, prefix="valid"), Timing(), ProgressBar(), Printing(),
            Checkpoint(tmp + "/saved.tar"), ParameterSync(CenterMomentum(), every_n_batches=4),
            FinishAfter(after_n_epochs=4),
        ]
        main_loop = loop(cost, shard_stream(stream(240, shuffled=True)), extensions)
        main_loop.run()
        log = main_loop.log
        ends = [log[row]["valid_cost"] for row in (0, *log.status["_epoch_ends"])]
        assert len(ends) == 5 and ends[-1] < 0.9 * ends[0], ends
        assert (everyones(np.array(ends)) == ends).all()
        assert ("saved_to" in log.current_row) == (rank == 0)
        """
    ).require_success()
    assert (tmp_path / "saved.tar").exists()
    assert "TRAINING HAS BEEN FINISHED" in outcome.logs[0]
    assert "TRAINING" not in outcome.logs[1]


def test_statistics_of_batch_normalization_are_averaged(run_blocks):
    """And saved so behind a monitoring; between meetings those of one worker are saved, which is told once."""
    outcome = run_blocks(script_path("blocks_jobs_statistics_of_batch_normalization")).require_success()
    told = "of this worker alone, because the workers averaged theirs last after batch 0: put Checkpoint"
    assert [log.count(told) for log in outcome.logs] == [1, 0]


def test_alone_a_script_is_unchanged(run_blocks):
    """With everything of this package with one worker, and without any of it: the same bits, records and output."""
    run_blocks(script_path("blocks_jobs_alone_a_script_is_unchanged"), workers=1).require_success()
