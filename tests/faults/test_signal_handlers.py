"""Signal handlers that talk to the job, whatever they interrupt: they work or are refused, and nothing ever hangs."""

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base


@pytest.mark.promise
def test_a_handler_talks_to_the_job_while_its_worker_waits_for_the_others(run_job):
    outcome = run_job(
        script_path("signal_handlers_a_handler_talks_to_the_job_while_its_worker"),
        handler=lambda req, rank, info: "answered",
    ).require_success()
    assert outcome.result.stopped_by == "preempted"
    assert outcome.reported == {"handled": 1}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_handler_may_make_any_call_at_any_moment(run_job, workers):
    """After every 29th instruction of each call the handler makes each call."""
    run_job(
        script_path("signal_handlers_any_call_at_any_moment"), workers, handler=lambda req, rank, info: "answered"
    ).require_success()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_handler_may_close_the_handle_at_any_moment(run_job, workers):
    """The call that it interrupts ends, well or with an error; the process goes on, and joins the job again."""
    run_job(
        script_path("signal_handlers_a_handler_may_close_the_handle_at_any_moment"), workers, args=[str(workers)]
    ).require_success()
