"""A worker's row: what is written there, read by the field names of the job's state."""

import functools
import time

import numpy as np
import psutil
import pytest

from platoon_base.shm.job_state import JobState
from platoon_base.worker.progress_row import ProgressRow

pytestmark = pytest.mark.base


@pytest.fixture
def job_state():
    return JobState(bytearray(JobState.size_bytes(3)), rows=3, create=True)


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float32])
def test_steps_of_any_number_type_are_added_to_this_row_alone(job_state, kind):
    row = ProgressRow(job_state, 1)
    row.add(kind(2), None, None)
    row.add(kind(3), 4, 0.5)
    assert job_state.table["steps"].tolist() == [0, 5, 0]
    assert (int(job_state.table["epoch"][1]), float(job_state.table["loss"][1])) == (4, 0.5)
    started, updated = job_state.table["started"], job_state.table["updated"]
    assert 0 < started[1] <= updated[1]
    assert started[0] == started[2] == updated[0] == updated[2] == 0


@pytest.mark.parametrize("kind", [int, float, np.float32])
def test_steps_that_a_function_has_counted_are_not_counted_again_by_the_script(job_state, kind):
    row = ProgressRow(job_state, 1)
    for _ in range(3):
        row.count_for_script(None)
    assert row.steps == 3
    row.add(kind(1), None, None)
    assert row.steps == 3, "two of the three are of steps that the script has yet to count"
    row.add(kind(4), None, None)
    assert row.steps == 7


def test_a_closed_row_keeps_its_values_and_leaves_the_memory_alone(job_state):
    row = ProgressRow(job_state, 2)
    row.add(5, 1, None)
    row.close()
    row.add(7, 2, None)
    assert (int(job_state.table["steps"][2]), int(job_state.table["epoch"][2])) == (5, 1)
    assert row.steps == 12


def test_the_use_of_the_machine_is_measured_each_second(job_state, monkeypatch):
    clocks = {"monotonic": 100.0, "process_time": 7.0}
    for name in clocks:
        monkeypatch.setattr(time, name, functools.partial(clocks.get, name))
    row = ProgressRow(job_state, 1)
    row.add(1, None, None)
    assert job_state.progress(1).memory_bytes == 0, "nothing is known of a second that has not passed"
    for seconds, spent, percent in [(2.0, 3.0, 150.0), (0.5, 0.0, 150.0), (0.5, 0.25, 25.0)]:
        clocks["monotonic"] += seconds
        clocks["process_time"] += spent
        row.count_for_script(None)
        assert job_state.progress(1).cpu_percent == percent
    own = psutil.Process().memory_info().rss
    assert abs(job_state.progress(1).memory_bytes - own) < 0.1 * own


def test_any_field_is_announced_by_its_name(job_state):
    """So a new value of each worker needs no code here."""
    row = ProgressRow(job_state, 1)
    row.announce(None, "patience 3/15", {"copies": 3, "last_step": None})
    progress = job_state.progress(1)
    assert (progress.copies, progress.last_step, progress.limit) == (3, 0, "patience 3/15")
    with pytest.raises(ValueError, match="no_such_field"):
        row.announce(None, None, {"no_such_field": 1})
