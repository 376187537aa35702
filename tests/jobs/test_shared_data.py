"""Shared data in jobs of real processes: one memory for all, and nothing left of it."""

import os
import re
import subprocess
import sys

import pytest
from scripts_here import script_path
from watching import await_file

from platoon_base.shm.segments import SHM_FOLDER

pytestmark = pytest.mark.base


def test_the_first_worker_loads_and_all_excerpt_from_the_same_memory(run_job):
    outcome = run_job(script_path("shared_data_the_first_worker_loads_and_all_excerpt"), 3).require_success()
    logs = "\n".join(outcome.logs)
    assert logs.count("loading") == logs.count("made here: True") == 1
    assert logs.count("made here: False") == 2
    assert len(set(re.findall(r"inode (\d+)", logs))) == 1
    assert logs.count("refused: got index 1000 at position 1 of the list: with 1000 rows") == 3
    assert logs.count("read-only") == 6


def test_a_worker_writes_and_resizes_and_the_others_see_it(run_job):
    outcome = run_job(script_path("shared_data_a_worker_writes_and_resizes_and_the_others"), 2).require_success()
    assert all("Error" not in log for log in outcome.logs)


def test_other_data_under_the_same_name_are_refused_where_they_come_later(run_job):
    outcome = run_job(script_path("shared_data_other_data_under_the_same_name_are_refused"), 2).require_success()
    text = "\n".join(outcome.logs)
    refusals = re.findall(r"refused: got (.*) for the shared data 'x\d', and another worker has shared", text)
    assert len(refusals) == 3


@pytest.mark.promise
def test_a_worker_that_dies_while_it_fills_the_memory_is_replaced(run_job):
    outcome = run_job(script_path("shared_data_a_worker_that_dies_while_it_fills_the_memory"), 3)
    logs = outcome.logs
    assert outcome.result.status != 0, logs
    assert "made here" not in logs[0]
    assert sorted(re.findall("made here: (True|False)", logs[1] + logs[2])) == ["False", "True"], logs


@pytest.mark.promise
def test_data_that_do_not_fit_are_refused_before_anything_is_written(run_job):
    room = os.statvfs(SHM_FOLDER)
    script = script_path("shared_data_data_that_do_not_fit")
    outcome = run_job(script, 2, args=[str(room.f_blocks * room.f_frsize)]).require_success()
    for log in outcome.logs:
        assert len(re.findall(rf"refused: needs \d+ MB of shared memory, {SHM_FOLDER} has \d+ MB free", log)) == 2
        assert int(log.split()[-1]) < 1 << 20


def test_removed_data_make_room_for_others_of_that_name(run_job):
    run_job(script_path("shared_data_removed_data_make_room_for_others"), 2).require_success()


def test_data_stay_readable_when_the_controller_is_killed_and_go_with_the_last_worker(tmp_path):
    script = script_path("shared_data_data_stay_readable_when_the_controller")
    subprocess.run(
        [sys.executable, "-m", "platoon_base", "launch", "-n", "2", script, tmp_path],
        cwd=tmp_path, capture_output=True, check=False, timeout=120, env={**os.environ, "PLATOON_NO_PREFORK": "1"},
    )  # fmt: skip
    for rank in range(2):
        await_file(tmp_path / f"rank {rank} has closed")
    assert not os.path.exists((tmp_path / "path").read_text())
