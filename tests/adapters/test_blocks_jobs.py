"""Main loops of Blocks on several workers: asynchronous and synchronous training, and how they end together."""

import pytest
from scripts_here import script_path

from platoon_base import compat

compat.apply()
pytest.importorskip("blocks.main_loop", reason="needs Blocks: BLOCKS=/path/to/a/checkout make test")

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(600)]


@pytest.mark.promise
def test_easgd_follows_its_equations_and_ends_with_the_center(run_blocks):
    run_blocks(script_path("blocks_jobs_easgd_follows_its_equations_and_ends")).require_success()


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


@pytest.mark.slow
def test_every_trigger_of_a_simple_extension_synchronizes(run_blocks):
    """In two epochs of four batches, EASGD by itself every four; at the end of training it is done once more."""
    run_blocks(script_path("blocks_jobs_every_trigger_of_a_simple_extension")).require_success()


@pytest.mark.promise
@pytest.mark.slow
def test_averaged_gradients_equal_large_batches_of_one_process(run_blocks):
    """Three workers, clipping and momentum behind the average, one flattened all-reduce; 20 steps."""
    run_blocks(script_path("blocks_jobs_averaged_gradients_equal_large_batches"), workers=3).require_success()


def test_without_a_rule_the_algorithm_decides(run_blocks):
    """The other worker names the rule; another one is refused. With averaged gradients triggers have no effect."""
    run_blocks(script_path("blocks_jobs_without_a_rule_the_algorithm_decides")).require_success()


def test_updates_of_ones_own_and_a_schedule_equal_large_batches_of_one_process(run_blocks):
    """No step rule tells what is trained; the schedule counts batches, of which one process has as many."""
    run_blocks(script_path("blocks_jobs_updates_of_ones_own_and_a_schedule_equal")).require_success()


def test_two_main_loops_one_after_the_other_and_one_twice(run_blocks):
    run_blocks(script_path("blocks_jobs_two_main_loops")).require_success()


@pytest.mark.slow
def test_averaged_gradients_stop_after_the_same_batch(run_blocks):
    """5 batches in an epoch, 4 epochs at most."""
    run_blocks(script_path("blocks_jobs_averaged_gradients_stop_after_the_same_batch")).require_success()


@pytest.mark.slow
def test_asynchronous_workers_stop_together(run_blocks):
    run_blocks(script_path("blocks_jobs_asynchronous_workers_stop_together")).require_success()


def test_a_worker_that_ends_alone_leaves_and_the_others_go_on(run_blocks):
    run_blocks(script_path("blocks_jobs_a_worker_that_ends_alone_leaves")).require_success()


def test_statistics_of_batch_normalization_are_averaged(run_blocks):
    """And saved so behind a monitoring; between meetings those of one worker are saved, which is told once."""
    outcome = run_blocks(script_path("blocks_jobs_statistics_of_batch_normalization")).require_success()
    told = "of this worker alone, because the workers averaged theirs last after batch 0: put Checkpoint"
    assert [log.count(told) for log in outcome.logs] == [1, 0]


def test_dropout_differs_between_workers(run_blocks):
    run_blocks(script_path("blocks_jobs_dropout_differs_between_workers")).require_success()


def test_alone_a_script_is_unchanged(run_blocks):
    """With everything of this package with one worker, and without any of it: the same bits, records and output."""
    run_blocks(script_path("blocks_jobs_alone_a_script_is_unchanged"), workers=1).require_success()
