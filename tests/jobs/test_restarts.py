"""--max-restarts: a worker that fails is started again, under its rank, and goes on from the center."""

import json
import os

import pytest
from scripts_here import script_path

from platoon_base.coordination.roster import Phase
from platoon_base.coordination.story import Story
from platoon_base.job import JobOptions, host_job
from platoon_base.job.starting import log_file

pytestmark = [pytest.mark.base, pytest.mark.slow]

# Each worker counts its mini-batches in the center, and rank 1 ends in the way given, once for each file in FOLDER.
COUNT = script_path("restarts_count")


@pytest.fixture
def launch(platoon, tmp_path):
    def run(*options, how="kill", failures=1, script=COUNT, wait=False, status=0):
        for number in range(failures):
            (tmp_path / f"fail-{number}").touch()
        command = ["launch", "-n", 2, "--log-dir", "logs", "--summary", "s.json", *options]
        done = platoon(*command, script, tmp_path, how, "wait" if wait else "go").require(status)
        return " ".join(done.stdout.split()), json.loads((tmp_path / "s.json").read_text()), done.logs

    return run


@pytest.mark.parametrize("how", [pytest.param("kill", marks=pytest.mark.promise), "raise"])
def test_a_worker_that_fails_goes_on_where_it_last_synchronized(launch, how):
    output, summary, logs = launch("--max-restarts", 2, how=how, wait=True)
    assert "restarting rank 1, restart 1 of 2" in output
    assert summary["restarts"] == 1
    first, second = [line for line in logs[1].splitlines() if line.startswith("starts at")]
    assert first == "starts at (0, 0, 0) late False kept None center 0"
    # 15 mini-batches were done, 14 of them when it synchronized; these are in the center, and are not done again.
    assert second.startswith("starts at (2, 4, 14) late True kept 28 center ")
    # Each mini-batch of both is in the center, and once.
    assert summary["center"] == 60


def test_a_worker_that_cannot_be_started_again_is_lost(tmp_path):
    program = tmp_path / "once"
    program.write_text('#!/bin/sh\nrm "$0"\nexit 3\n')
    program.chmod(0o755)
    seen, story = [], Story()
    with host_job(1, JobOptions(max_restarts=1, observer=seen.append, story=story)) as job:
        job.start(0, [str(program)], dict(os.environ), log_file(tmp_path, 0))
        assert job.serve().status == 3
    assert seen[-1].participants[0].phase is Phase.LOST
    assert "cannot be started again: [Errno 2]" in story.entries[-1].line


def test_what_was_kept_comes_back_once(run_job):
    run_job(script_path("restarts_what_was_kept_comes_back_once"), 1, max_restarts=1).require_success()


# Rank 1 is killed in its 13th step, once for each file in FOLDER; nobody can go on without it.
TOGETHER = script_path("restarts_together")


def starts(log):
    return [line for line in log.splitlines() if line.startswith("starts at")]


@pytest.mark.promise
def test_workers_that_need_each_other_are_all_started_again_from_the_checkpoint(launch, tmp_path):
    output, summary, logs = launch("--max-restarts", 2, "--checkpoint-every", 1000, script=TOGETHER, failures=2)
    assert summary["restarts"] == 2
    assert summary["end"] == 30
    again = "starts at (2, 5, 10) late False with 20.0"
    assert [starts(log) for log in logs] == [["starts at (0, 0, 0) late False with 0.0", again, again]] * 2
    assert "cannot restart rank 1 alone: restarting all workers from the checkpoint" in output
    assert "restarting all workers, restart 2 of 2" in output


def test_without_checkpoints_they_begin_anew_once_all_have_failed(launch, tmp_path):
    _, summary, logs = launch("--max-restarts", 1, script=TOGETHER)
    assert summary["restarts"] == 1
    assert summary["end"] == 30
    assert [starts(log) for log in logs] == [["starts at (0, 0, 0) late False with 0.0"] * 2] * 2
    assert "cannot complete: rank 1 is lost (cpu, killed by SIGKILL, see " in logs[0]
    assert str(tmp_path / "logs" / "rank1.log") in logs[0]


def test_what_the_others_have_finished_is_not_done_again(launch):
    script = script_path("restarts_what_is_finished_is_not_done_again")
    _, summary, logs = launch("--max-restarts", 5, script=script, status=137)
    assert summary["restarts"] == 0
    assert [len(starts(log)) for log in logs] == [1, 1]
