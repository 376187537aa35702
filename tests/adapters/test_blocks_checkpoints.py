"""What is saved of main loops on several workers, and what goes on from it."""

import pytest
from needing import require
from scripts_here import script_path

require("blocks.main_loop")

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("the_center_is_what_is_saved", marks=pytest.mark.slow),
        "what_is_saved_is_what_was_validated_last",
        "load_brings_values_and_refuses_another_model",
    ],
)
def test_workers(run_blocks, script):
    run_blocks(script_path(f"blocks_checkpoints_{script}")).require_success()


@pytest.mark.parametrize(
    "learns",
    [[], pytest.param(["learns of it between two meetings"], marks=pytest.mark.promise)],
    ids=["in a meeting", "between"],
)
def test_when_the_first_worker_dies_the_next_one_prints_and_saves(run_blocks, learns):
    outcome = run_blocks(script_path("blocks_checkpoints_when_the_first_worker_dies_the_next"), args=learns)
    assert [e.status for e in sorted(outcome.result.exits)] == [137, 0], outcome.logs
    assert "rank 1 prints and saves from now on" in outcome.logs[1]
    assert "TRAINING HAS BEEN FINISHED" in outcome.logs[1]
    assert "BEFORE FIRST EPOCH" not in outcome.logs[1]


RESUMED = script_path("blocks_checkpoints_resumed")


@pytest.mark.parametrize(("way", "workers"), [("async", 2), ("sync", 1)])
@pytest.mark.slow
def test_a_pickled_main_loop_goes_on_with_any_number_of_workers(run_blocks, way, workers):
    run_blocks(RESUMED, 2, args=[way]).require_success()
    outcome = run_blocks(RESUMED, workers, args=[way, "resume"]).require_success()
    assert "TRAINING HAS BEEN RESUMED" in outcome.logs[0]
    assert all("TRAINING" not in log for log in outcome.logs[1:])


@pytest.mark.slow
def test_averaged_gradients_go_on_exactly(run_blocks):
    """20 steps at once, and 20 of which the last 13 are resumed: the same bits on the same number of workers."""
    script = script_path("blocks_checkpoints_averaged_gradients_go_on_exactly")
    run_blocks(script).require_success()
    run_blocks(script, args=["resume"]).require_success()


@pytest.mark.slow
def test_what_one_process_saved_goes_on_asynchronously_with_two(run_blocks):
    """Extensions take their places then; averaged gradients have no place in a function that was compiled for one."""
    script = script_path("blocks_checkpoints_what_one_process_saved_goes")
    run_blocks(script, 1, args=["async"]).require_success()
    run_blocks(script, 2, args=["async", "resume"]).require_success()
    run_blocks(script, 1, args=["sync"]).require_success()
    refused = run_blocks(script, 2, args=["sync", "resume"])
    assert refused.result.status == 1
    assert all("created with one worker" in log for log in refused.logs), refused.logs
