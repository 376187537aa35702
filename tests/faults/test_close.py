"""After close(): what a handle still answers, what it refuses, and that its memory goes; nothing ends the process."""

import os
import sys
import textwrap

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base.job.files import segment_prefix
from platoon_base.layout import array_on
from platoon_base.shm.job_state import JobState
from platoon_base.shm.segments import Segment

pytestmark = pytest.mark.base


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.promise)])
def test_a_closed_handle_answers_from_its_last_copy_or_refuses(run_job, workers):
    outcome = run_job(script_path("close_a_closed_handle_answers_from_its_last_copy"), workers).require_success()
    assert outcome.result.stopped_by == "enough"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.promise)])
def test_threads_that_ask_a_handle_while_it_is_closed_and_the_process_ends(run_job, workers):
    run_job(script_path("close_threads_that_ask_a_handle_while_it_is_closed"), workers).require_success()


def test_memory_stays_under_an_array_and_goes_with_it(run_command):
    """In a process of its own: reading memory that is unmapped would end it."""
    code = f"""
        import gc
        import numpy as np
        from platoon_base.shm.segments import Segment
        from platoon_base.layout import array_on

        name = {segment_prefix()!r} + "close-test"

        def mapped():
            return any(name in line for line in open("/proc/self/maps"))

        with Segment.create(name, 8192) as segment:
            whole = array_on(segment.buffer, (1024,), "i8")
            whole[:] = range(1024)
            part = array_on(segment.buffer, (3,), "i8", 8 * 1000)
        Segment.unlink(name)
        assert segment.closed and mapped()
        assert whole.sum() == 1023 * 512
        del whole
        assert mapped() and part.tolist() == [1000, 1001, 1002]
        del part
        assert not mapped()
    """
    run_command(sys.executable, "-c", textwrap.dedent(code)).require()


def test_a_job_state_is_read_and_written_on_a_last_copy():
    name = f"{segment_prefix()}test{os.getpid()}-state"
    with Segment.create(name, JobState.size_bytes(3)) as segment:
        job_state = JobState(segment.buffer, rows=3, create=True)
        job_state.stop("enough")
        job_state.row(2)["steps"] = 7
        job_state.stop_votes[1] = 5
        job_state.detach()
        assert np.frombuffer(segment.buffer, np.uint8).any()
        array_on(segment.buffer, (len(segment.buffer),), np.uint8)[...] = 0
        Segment.unlink(name)
    assert job_state.stopping
    assert job_state.stop_reason == "enough"
    assert job_state.progress(2).steps == 7
    assert job_state.stop_votes.tolist() == [0, 5, 0]
    job_state.row(2)["steps"] += 1
    assert job_state.progress(2).steps == 8
