"""What the workers of one training call compare before each call, and what they do where they differ."""

import importlib.util
import re

import pytest
from scripts_here import script_path

HERE = importlib.util.find_spec("theano") is not None
WHY = "needs Theano: `make setup` installs it on Python 3.11"
pytestmark = [pytest.mark.theano, pytest.mark.skipif(not HERE, reason=WHY)]


def test_the_first_workers_rows_count_for_all(run_function):
    """Slices, lists and masks, of other kinds and lengths on each worker: rows of a local random choice."""
    run_function(
        script_path("function_agreement_the_first_workers_rows_count_for_all"),
        3,
    ).require_success()


def test_inputs_that_differ_from_worker_to_worker_are_refused_on_all(run_function):
    """A learning rate of this worker's own made parameters that differ from then on, without an error."""
    outcome = run_function(
        script_path("function_agreement_inputs_that_differ_from_worker_to_worker"),
        3,
    ).require_success()
    wanted = [
        "the workers pass different values for input 3, rate: worker 0: 0.1 (float32); worker 1: 0.2 (float32); worker",
        "the workers pass different values for input 4, offset: worker 0: float32 of shape (3,), [1.0, 0.0, 0.0]; w",
        "the workers pass different values for input 1, x: worker 0: float32 of shape (23, 3), [",
        "the workers pass different values for input 1, x: worker 0: float32 of shape (23, 3), [",
        "the workers pass different values for input 1, x: worker 0: float32 of shape (20, 3), [",
        "the workers pass different values for input 2, y: worker 0: float32 of shape (23,), [",
    ]
    for log in outcome.logs:
        found = re.findall("refused: (.*)", log)
        assert len(found) == len(wanted), log
        for line, start in zip(found, wanted):
            assert line.startswith(start), line
            assert "RandomState" in line
    assert "SharedData 'x' of shape (23, 3)" in outcome.logs[0]


def test_a_worker_that_refuses_its_arguments_is_named_to_the_others_at_once(run_function):
    """They waited for it until their deadline, 300 s."""
    outcome = run_function(
        script_path("function_agreement_a_worker_that_refuses_its_arguments_is_named"),
        3,
    ).require_success()
    other = "ConfigurationError worker {} has refused its arguments of this call of a function: {}"
    wanted = [
        (1, "ConfigurationError", "got indices of shape () and dtype <U3"),
        (2, "ConfigurationError", "got inputs of 2 lengths [9, 23]"),
        (0, "ConfigurationError", "got 1 values for 2 inputs"),
        (1, "ConfigurationError", "got int without rows for an input that is scattered"),
        (1, "ValueError", "slice step cannot be zero"),
        (None, "ConfigurationError", "got batch_s for each worker on some workers"),
        (1, "RowIndexError", "got index -99 at position 0"),
        (None, "RowIndexError", "got index 7 at position 0 of the list: there are 7 rows"),
        (None, "ConfigurationError", "the workers call different functions at the same time: worker 0: of inputs [], "),
    ]
    for rank, log in enumerate(outcome.logs):
        found = re.findall("refused: (.*)", log)
        assert len(found) == len(wanted), log
        for line, (refusing, kind, start) in zip(found, wanted):
            own = refusing in (rank, None) or (kind == "ValueError" and rank)
            text = f"{kind} {start}" if own else other.format(refusing, f"{kind}: {start}")
            assert line.startswith(text), line
