"""Rank 0 fails: who is the leader then, what the launcher says, and which failures end the job."""

import json
import re

import pytest
from asking import Job
from scripts_here import script_path

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


# The last one has left the job when it is known that it fails.
@pytest.mark.parametrize("end", [pytest.param("killed", marks=pytest.mark.promise), "exits", "leaves and raises"])
def test_another_worker_becomes_the_leader(run_job, tmp_path, end):
    outcome = run_job(script_path("leader_changes"), workers=3, args=[end])
    assert [path.name for path in tmp_path.glob("by *")] == ["by 1"], outcome.logs
    assert "worker 0 failed after 3 mini-batches" in outcome.result.lost_leader
    assert "worker 1 was the leader" in outcome.result.lost_leader


def test_a_worker_that_ended_well_is_followed_by_no_leader(run_job, tmp_path):
    outcome = run_job(script_path("leader_changes"), workers=3, args=["leaves"]).require_success()
    assert list(tmp_path.glob("by *")) == []
    assert outcome.result.lost_leader == ""


def ended(**fields):
    return Exit(1, 1, failure=Failure(1, "ValueError", "a text", 0.0, **fields))


NEW = Progress(0, 0, 0, 0.0, 0.0, 0.0, 0.0)
MADE = {
    "nothing": (NEW, True),
    "met the others to train": (NEW._replace(bound=1, waits=4), True),
    "evaluated the center before its training": (NEW._replace(bound=1, waits=4, copies=1), True),
    "copied the center in a loop of its own": (NEW._replace(copies=1), False),
    "met the others, and counts nothing": (NEW._replace(waits=4), False),
    "a step": (NEW._replace(steps=1), False),
    "steps of an earlier process": (NEW._replace(steps=7, steps_before_start=7), True),
    "a synchronization": (NEW._replace(syncs=1), False),
}


@pytest.mark.promise
@pytest.mark.parametrize("made", MADE)
def test_an_exception_before_the_first_step_is_fatal(made):
    progress, early = MADE[made]
    assert bool(fatal(ended(), progress, "early")) == early
    assert fatal(ended(), progress, "never") == ""
    assert fatal(ended(), progress, "always")
    assert fatal(ended(follows=True), progress, "always") == ""  # that another has failed is the reason


@pytest.mark.promise
def test_other_data_than_those_of_another_worker_are_fatal_at_any_step():
    differs = Exit(1, 1, failure=Failure(1, "DataMismatchError", "a text", 0.0))
    assert "other data" in fatal(differs, NEW._replace(steps=9), "early")
    assert fatal(differs, NEW._replace(steps=9), "never") == ""


def test_a_worker_that_is_killed_before_its_first_step_is_not_fatal_unless_asked():
    assert fatal(Exit(1, 137), NEW, "early") == ""
    assert "--fail-fast" in fatal(Exit(1, 137), NEW, "always")


def test_a_worker_that_is_interrupted_before_its_first_step_does_not_end_the_job():
    """As by Ctrl-C in one of several terminals."""
    assert fatal(Exit(1, 130, failure=Failure(1, INTERRUPTED, "", 0.0)), NEW, "early") == ""


def test_only_a_leader_that_ended_well_is_said_to_have_led():
    exits = [Exit(0, 1), Exit(1, 1), Exit(2, 0), Exit(3, 0)]
    assert "worker 2 was the leader" in lost_leader(exits, 3, [1, 2])
    assert "with worker.is_leader" in lost_leader(exits, 3, [1])
    assert lost_leader(exits[1:], 3, [1, 2]) == lost_leader(exits[:2], 3, [1]) == ""


FAILING = script_path("leader_fails")


@pytest.mark.parametrize(
    ("moment", "options", "said"),
    [
        pytest.param("early", [], "before its first step (ValueError)", marks=pytest.mark.promise),
        ("late", ["--fail-fast"], "because of --fail-fast"),
    ],
)
def test_a_fatal_failure_ends_the_job(platoon, tmp_path, moment, options, said):
    summary = tmp_path / "summary.json"
    words = ["--log-dir", tmp_path / "logs", "--summary", summary, *options, FAILING, moment, "rest"]
    process = platoon("launch", "-n", "2", *words).require(1)
    assert said in " ".join(process.stdout.split())
    found = json.loads(summary.read_text())["stopped_by"]
    assert re.fullmatch(r"worker 1: ValueError: a wrong option \(leader_fails\.py:\d+\)", found), found


def test_the_launcher_shows_the_output_of_the_new_leader(platoon, tmp_path):
    script = script_path("leader_changes")
    process = platoon("launch", "-n", "3", "--log-dir", tmp_path / "logs", script, tmp_path, "killed")
    assert "[1] the new leader" in process.stdout
    assert "[2] the new leader" not in process.stdout
    assert "From then on worker 1 was the leader" in " ".join(process.stdout.split())
