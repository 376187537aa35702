"""Rank 0 fails: who is the leader then, what the launcher says, and which failures end the job."""

import json
import re

import pytest
from asking import Job

from platoon_base.controller.departures import fatal, lost_leader
from platoon_base.controller.processes import Exit
from platoon_base.coordination import messages as msg
from platoon_base.shm.job_state import Progress
from platoon_base.worker_process.failure import INTERRUPTED, Failure

pytestmark = pytest.mark.base


def test_the_leader_is_the_lowest_rank_that_is_not_lost():
    job = Job(3).join(0, 1, 2)
    roster = job.coordinator.roster
    assert roster.leader == 0
    job.answer(0, msg.Leave())
    assert roster.leader == 0  # what it had to do is done
    job.coordinator.worker_ended(0, lost=True)  # it had said goodbye on its way down
    assert roster.leader == 1
    job.coordinator.worker_ended(1, lost=True)
    assert roster.leader == 2
    job.coordinator.worker_ended(2, lost=True)
    assert roster.leader == 0


LEADER = """
import os, signal, sys, time
from pathlib import Path
from platoon_base import connect
from platoon_base.worker import Worker
from watching import until

def slowly():
    until(lambda: Path(sys.argv[1], "asks").exists())
    time.sleep(0.2)

with connect() as worker:
    worker.progress(steps=3)
    assert worker.is_leader == (worker.global_rank == 0)
    worker.barrier()
    if worker.global_rank == 0:
        {end}
    until(lambda: len(worker.gather(0)) == 2)  # ranks 1 and 2
    Path(sys.argv[1], "asks").touch()
    if worker.is_leader:
        Path(sys.argv[1], f"by {{worker.global_rank}}").touch()
    worker.barrier()
"""


# The last one has left the job when it is known that it fails.
@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)", "worker.close(); slowly(); raise OSError"]
)
def test_another_worker_becomes_the_leader(run_job, tmp_path, end):
    outcome = run_job(LEADER.format(end=end), workers=3)
    assert [path.name for path in tmp_path.glob("by *")] == ["by 1"], outcome.logs
    assert "worker 0 failed after 3 mini-batches" in outcome.result.lost_leader
    assert "Worker 1 was the leader" in outcome.result.lost_leader


def test_a_worker_that_ended_well_is_followed_by_no_leader(run_job, tmp_path):
    outcome = run_job(LEADER.format(end="worker.close(); sys.exit()"), workers=3).require_success()
    assert list(tmp_path.glob("by *")) == []
    assert outcome.result.lost_leader == ""


def ended(**fields):
    return Exit(1, 1, failure=Failure(1, "ValueError", "a text", 0.0, **fields))


NEW = Progress(0, 0, 0, 0.0, 0.0, 0.0, 0.0)
MADE = {
    "nothing": (NEW, True),
    "met the others to train": (NEW._replace(bound=1, waits=4), True),
    "met the others, and counts nothing": (NEW._replace(waits=4), False),
    "a step": (NEW._replace(steps=1), False),
    "steps of an earlier process": (NEW._replace(steps=7, steps_before_start=7), True),
    "a synchronization": (NEW._replace(syncs=1), False),
}


@pytest.mark.parametrize("made", MADE)
def test_an_exception_before_the_first_step_is_fatal(made):
    progress, early = MADE[made]
    assert bool(fatal(ended(), progress, "early")) == early
    assert fatal(ended(), progress, "never") == ""
    assert fatal(ended(), progress, "always")
    assert fatal(ended(follows=True), progress, "always") == ""  # that another has failed is the reason


def test_a_worker_that_is_killed_before_its_first_step_is_not_fatal_unless_asked():
    assert fatal(Exit(1, 137), NEW, "early") == ""
    assert "--fail-fast" in fatal(Exit(1, 137), NEW, "always")


def test_a_worker_that_is_interrupted_before_its_first_step_does_not_end_the_job():
    """As by Ctrl-C in one of several terminals."""
    assert fatal(Exit(1, 130, failure=Failure(1, INTERRUPTED, "", 0.0)), NEW, "early") == ""


def test_only_a_leader_that_ended_well_is_said_to_have_led():
    exits = [Exit(0, 1), Exit(1, 1), Exit(2, 0), Exit(3, 0)]
    assert "Worker 2 was the leader" in lost_leader(exits, 3, [1, 2])
    assert "if it asks worker.is_leader instead" in lost_leader(exits, 3, [1])
    assert lost_leader(exits[1:], 3, [1, 2]) == lost_leader(exits[:2], 3, [1]) == ""


EARLY = """
import time
from platoon_base import connect
from watching import rest, until
worker = connect()
if worker.global_rank == 1:
    raise ValueError("a wrong option")
worker.progress(steps=1)
{rest}
"""
LATE = """
from platoon_base import connect
from watching import rest, until
worker = connect()
worker.progress(steps=1)
worker.barrier()
if worker.global_rank == 1:
    raise ValueError("a wrong option")
{rest}
"""


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [(EARLY, [], "before its first step (ValueError)"), (LATE, ["--fail-fast"], "as --fail-fast asks")],
)
def test_a_fatal_failure_ends_the_job(platoon, write_script, tmp_path, text, options, said):
    summary = tmp_path / "summary.json"
    script = write_script(text.format(rest="rest()"))
    process = platoon("launch", "-n", "2", "--log-dir", tmp_path / "logs", "--summary", summary, *options, script)
    assert process.returncode == 1, process.stdout
    assert said in " ".join(process.stdout.split())
    found = json.loads(summary.read_text())["stopped_by"]
    assert re.fullmatch(r"worker 1: ValueError: a wrong option \(script\.py:\d+\)", found), found


@pytest.mark.parametrize(("text", "options"), [(EARLY, ["--allow-failures"]), (LATE, [])])
def test_after_other_failures_the_others_go_on(platoon, write_script, tmp_path, text, options):
    script = write_script(text.format(rest="until(lambda: worker.gather(1) == [1]); print('to the end')"))
    process = platoon("launch", "-n", "2", "--log-dir", tmp_path / "logs", *options, script)
    assert "to the end" in (tmp_path / "logs" / "rank0.log").read_text()
    assert process.returncode == (0 if options else 1)


def test_the_launcher_shows_the_output_of_the_new_leader(platoon, write_script, tmp_path):
    script = write_script(LEADER.format(end="os.kill(os.getpid(), signal.SIGKILL)") + "print('the new leader')\n")
    process = platoon("launch", "-n", "3", "--log-dir", tmp_path / "logs", script, tmp_path)
    assert "[1] the new leader" in process.stdout
    assert "[2] the new leader" not in process.stdout
    assert "Worker 1 was the leader from then on" in " ".join(process.stdout.split())
