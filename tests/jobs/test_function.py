"""One training call for all workers, against plain Theano on all rows in one process."""

import importlib.util
import re

import pytest
from scripts_here import script_path

HERE = importlib.util.find_spec("theano") is not None
WHY = "needs Theano: `make setup` installs it on Python 3.11"
pytestmark = [pytest.mark.theano, pytest.mark.skipif(not HERE, reason=WHY)]


# Each script compares the calls of all workers with one process, and fails on any difference.
SCRIPTS = [
    # Also with a last batch of fewer rows than workers, and with lists that only the first worker has so.
    ("function_training_is_that_of_one_process_on_all_rows", 2),
    ("function_training_is_that_of_one_process_on_all_rows", 3),
    # Momentum is linear in the gradients, so its averages are exact; an integer counts on as it is.
    ("function_new_values_are_averaged_where_updates", 2),
    ("function_gradients_that_are_averaged_already_stay", 2),
    ("function_a_loss_that_is_a_sum_and_an_input_for_all", 2),
    ("function_outputs_of_all_reductions_and_in_slices", 3),
    # Worker r has the rows r, r + N, ...; batch_s selects among them.
    ("function_data_that_lie_in_the_memory_of_each_worker", 1),
    ("function_data_that_lie_in_the_memory_of_each_worker", 3),
    # As in one process: ``givens`` put the data sets, indexed by the call, where the model has inputs.
    ("function_data_sets_and_values_take_the_place", 2),
    # Rank 0 selects no row. What it computes to tell shapes, from its first row of 100, is in no output.
    ("function_a_worker_without_rows_adds_nothing_to_any", 2),
    # A default update is averaged, as one of all rows; noise differs from worker to worker.
    ("function_running_statistics_and_noise", 2),
    # Draws for the whole data set, which only the random stream's state shows, took minutes an epoch.
    ("function_noise_for_rows_of_resident_data_is_drawn", 1),
    # Slices, lists and masks, of other kinds and lengths on each worker: rows of a local random choice.
    ("function_agreement_the_first_workers_rows_count_for_all", 3),
]


@pytest.mark.parametrize(("script", "workers"), SCRIPTS)
def test_calls_are_those_of_one_process_on_all_rows(run_function, script, workers):
    run_function(script_path(script), workers).require_success()


def require_refusals(outcome, wanted):
    """Each worker has said what was refused, in this order; a list has the words of each rank."""
    for rank, log in enumerate(outcome.logs):
        found = re.findall("refused: (.*)", log)
        assert len(found) == len(wanted), log
        for line, start in zip(found, wanted):
            assert line.startswith(start if isinstance(start, str) else start[rank]), line


def test_a_wrong_index_is_told_on_every_worker_and_all_go_on(run_function):
    outcome = run_function(script_path("function_a_wrong_index_is_told_on_every_worker"), 2).require_success()
    wanted = [
        "RowIndexError got index 23 at position 1 of the list: with 23 rows",
        "ConfigurationError got inputs of 2 lengths [9, 23]",
        "ConfigurationError got no rows: batch selects none of 23",
        "ConfigurationError got 1 values for 2 inputs",
        "ConfigurationError got batch_s, and the function has no data sets",
        "ConfigurationError got batch, which selects rows of scattered inputs, and no input is scattered",
        "RowIndexError got index 99 at position 0",
        ["ConfigurationError worker 1 refused its arguments", "RowIndexError got index -99 at position 0"],
        "ConfigurationError got batch_s of 1 lists for 2 workers",
        "ConfigurationError got num_slices=0",
        "RowIndexError got 24 as rows, which means the first 24 rows: there are only 23",
        "RowIndexError got -1 as rows",
        "ConfigurationError got num_slices=2 for a function with updates",
    ]
    require_refusals(outcome, wanted)


def test_arguments_that_cannot_work_are_refused(run_function):
    outcome = run_function(script_path("function_arguments_that_cannot_work_are_refused"), 1).require_success()
    found = re.findall("refused: (.*)", outcome.logs[0])
    for line, start in zip(
        found,
        [
            "got TensorType(float32, vector) as the loss", "got params=None for updates that are a function",
            "got (3, 4) in updates", "got ", "got 2 reductions for 1 outputs", "got sliceable_shareds=",
            "got broadcast=[y]", "got 0 rows for 1 workers", "got output 0 of shape (3,) from 23 rows",
        ],
    ):  # fmt: skip
        assert line.startswith(start), line
    assert len(found) == 9


def test_other_graphs_on_other_workers_are_refused_on_all(run_function):
    outcome = run_function(script_path("function_other_graphs_on_other_workers_are_refused"), 2).require_success()
    assert all("refused: " in log for log in outcome.logs)


def test_a_worker_that_dies_ends_the_call_of_the_others(run_function):
    outcome = run_function(script_path("function_a_worker_that_dies_ends_the_call"), 2)
    assert "ended in step 5" in outcome.logs[0]


def test_inputs_that_differ_from_worker_to_worker_are_refused_on_all(run_function):
    """A learning rate of this worker's own made parameters that differ from then on, without an error."""
    outcome = run_function(
        script_path("function_agreement_inputs_that_differ_from_worker_to_worker"), 3
    ).require_success()
    wanted = [
        "the workers pass different values for input 3, rate: worker 0: 0.1 (float32); worker 1: 0.2 (float32); worker",
        "the workers pass different values for input 4, offset: worker 0: float32 of shape (3,), [1.0, 0.0, 0.0]; w",
        "the workers pass different values for input 1, x: worker 0: float32 of shape (23, 3), [",
        "the workers pass different values for input 1, x: worker 0: float32 of shape (23, 3), [",
        "the workers pass different values for input 1, x: worker 0: float32 of shape (20, 3), [",
        "the workers pass different values for input 2, y: worker 0: float32 of shape (23,), [",
    ]
    require_refusals(outcome, wanted)
    assert all("RandomState" in line for log in outcome.logs for line in log.splitlines() if "refused: " in line)
    assert "SharedData 'x' of shape (23, 3)" in outcome.logs[0]


def test_a_worker_that_refuses_its_arguments_is_named_to_the_others_at_once(run_function):
    """They waited for it until their deadline, 300 s."""
    outcome = run_function(
        script_path("function_agreement_a_worker_that_refuses_its_arguments_is_named"), 3
    ).require_success()
    other = "ConfigurationError worker {} refused its arguments of this call of a function: {}"
    wanted = [
        (1, "ConfigurationError", "got indices of shape () and dtype <U3"),
        (2, "ConfigurationError", "got inputs of 2 lengths [9, 23]"),
        (0, "ConfigurationError", "got 1 values for 2 inputs"),
        (1, "ConfigurationError", "got int without rows for an input that is scattered"),
        (1, "ValueError", "slice step cannot be zero"),
        (None, "ConfigurationError", "got batch_s for each worker on some workers"),
        (1, "RowIndexError", "got index -99 at position 0"),
        (None, "RowIndexError", "got index 7 at position 0 of the list: with 7 rows"),
        (None, "ConfigurationError", "the workers call different functions at the same time: worker 0: of inputs [], "),
    ]
    for rank, log in enumerate(outcome.logs):
        found = re.findall("refused: (.*)", log)
        assert len(found) == len(wanted), log
        for line, (refusing, kind, start) in zip(found, wanted):
            own = refusing in (rank, None) or (kind == "ValueError" and rank)
            text = f"{kind} {start}" if own else other.format(refusing, f"{kind}: {start}")
            assert line.startswith(text), line
