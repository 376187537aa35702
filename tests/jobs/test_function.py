"""One training call for all workers, against plain Theano on all rows in one process."""

import importlib.util
import re

import pytest
from scripts_here import script_path

HERE = importlib.util.find_spec("theano") is not None
WHY = "needs Theano: `make setup` installs it on Python 3.11"
pytestmark = [pytest.mark.theano, pytest.mark.skipif(not HERE, reason=WHY)]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.promise), 3])
def test_training_is_that_of_one_process_on_all_rows(run_function, workers):
    """Also with a last batch of fewer rows than workers, and with lists that only the first worker has so."""
    run_function(
        script_path("function_training_is_that_of_one_process_on_all_rows"),
        workers,
    ).require_success()


def test_new_values_are_averaged_where_updates_are_given(run_function):
    """Momentum is linear in the gradients, so its averages are exact; an integer counts on as it is."""
    run_function(
        script_path("function_new_values_are_averaged_where_updates"),
        2,
    ).require_success()


def test_gradients_that_are_averaged_already_stay_as_they_are(run_function):
    run_function(
        script_path("function_gradients_that_are_averaged_already_stay"),
        2,
    ).require_success()


def test_a_loss_that_is_a_sum_and_an_input_for_all(run_function):
    run_function(
        script_path("function_a_loss_that_is_a_sum_and_an_input_for_all"),
        2,
    ).require_success()


@pytest.mark.parametrize("workers", [1, 3])
def test_outputs_of_all_reductions_and_in_slices(run_function, workers):
    run_function(
        script_path("function_outputs_of_all_reductions_and_in_slices"),
        workers,
    ).require_success()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_data_that_lie_in_the_memory_of_each_worker(run_function, workers):
    """Worker r has the rows r, r + N, ...; batch_s selects among them."""
    run_function(
        script_path("function_data_that_lie_in_the_memory_of_each_worker"),
        workers,
    ).require_success()


@pytest.mark.parametrize("workers", [1, 2])
def test_data_sets_and_values_take_the_place_of_inputs_by_givens(run_function, workers):
    """As in one process: ``givens`` put the data sets, indexed by the call, where the model has inputs."""
    run_function(
        script_path("function_data_sets_and_values_take_the_place"),
        workers,
    ).require_success()


def test_a_worker_without_rows_adds_nothing_to_any_reduction(run_function):
    """Rank 0 selects no row. What it computes to tell shapes, from its first row of 100, is in no output."""
    run_function(
        script_path("function_a_worker_without_rows_adds_nothing_to_any"),
        2,
    ).require_success()


def test_running_statistics_and_noise(run_function):
    """A default update is averaged, as one of all rows; noise differs from worker to worker."""
    run_function(
        script_path("function_running_statistics_and_noise"),
        2,
    ).require_success()


def test_noise_for_rows_of_resident_data_is_drawn_for_those_rows_alone(run_function):
    """Draws for the whole data set, which only the random stream's state shows, took minutes an epoch."""
    run_function(
        script_path("function_noise_for_rows_of_resident_data_is_drawn"),
        1,
    ).require_success()


def test_a_wrong_index_is_told_on_every_worker_and_all_go_on(run_function):
    outcome = run_function(
        script_path("function_a_wrong_index_is_told_on_every_worker"),
        2,
    ).require_success()
    wanted = [
        "RowIndexError got index 23 at position 1 of the list: there are 23 rows",
        "ConfigurationError got inputs of 2 lengths [9, 23]",
        "ConfigurationError got no rows: batch selects none of 23",
        "ConfigurationError got 1 values for 2 inputs",
        "ConfigurationError got batch_s, and the function has no data sets",
        "ConfigurationError got batch, and no input is scattered",
        "RowIndexError got index 99 at position 0",
        ["ConfigurationError worker 1 has refused its arguments", "RowIndexError got index -99 at position 0"],
        "ConfigurationError got batch_s of 1 lists for 2 workers",
        "ConfigurationError got num_slices=0",
        "RowIndexError got the number 24 as rows, which stands for so many first ones: there are 23",
        "RowIndexError got the number -1 as rows",
        "ConfigurationError got num_slices=2 for a function with updates",
    ]
    for rank, log in enumerate(outcome.logs):
        found = re.findall("refused: (.*)", log)
        assert len(found) == len(wanted), log
        for line, start in zip(found, wanted):
            assert line.startswith(start if isinstance(start, str) else start[rank]), line


def test_arguments_that_cannot_work_are_refused(run_function):
    outcome = run_function(
        script_path("function_arguments_that_cannot_work_are_refused"),
        1,
    ).require_success()
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
    outcome = run_function(
        script_path("function_other_graphs_on_other_workers_are_refused"),
        2,
    ).require_success()
    assert all("refused: " in log for log in outcome.logs)


def test_a_worker_that_dies_ends_the_call_of_the_others(run_function):
    outcome = run_function(
        script_path("function_a_worker_that_dies_ends_the_call"),
        2,
    )
    assert "ended in step 5" in outcome.logs[0]
