"""--checkpoint-every and --resume: a job that was killed as a whole goes on with its center and its steps."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from scripts_here import script_path
from watching import clean_up, until

from platoon_base.checkpoints.files import CheckpointFolder, read_checkpoint
from platoon_base.cli.run_files import read_story

pytestmark = [pytest.mark.base, pytest.mark.slow]

PATIENCE_S = 180  # on busy cores

# Each worker counts its mini-batches in the center; it waits at a step if told to, for a file or for its end.
COUNT = script_path("resume_count").read_text()


@pytest.fixture
def script(write_script):
    return write_script(COUNT)


@pytest.fixture
def finish(platoon, script, tmp_path):
    def run(*options, workers=2):
        command = "launch", "-n", workers, "--log-dir", "logs", "--summary", "s.json", *options
        done = platoon(*command, script, tmp_path, 0).require()
        starts = [line for log in done.logs for line in log.splitlines() if line.startswith("starts at")][-workers:]
        for rank in range(workers):
            (tmp_path / "logs" / f"rank{rank}.log").unlink()
        return json.loads((tmp_path / "s.json").read_text()), starts, done.stdout

    return run


@pytest.fixture
def interrupt(start_platoon, script, tmp_path):
    """Run the script until all have paused at a step, and end the job with a signal to all its processes."""

    def run(*options, pause_at, number, reached=lambda: True, workers=2):
        paused = [tmp_path / f"paused-{rank}" for rank in range(workers)]
        launcher = start_platoon("launch", "-n", workers, *options, "--log-dir", "first", script, tmp_path, pause_at)
        until(lambda: all(path.exists() for path in paused) and reached(), PATIENCE_S)
        everybody = [launcher, *psutil.Process(launcher.pid).children(recursive=True)]
        for process in everybody if number == signal.SIGKILL else [launcher]:
            process.send_signal(number)
        launcher.communicate(timeout=120)
        for path in paused:
            path.unlink()
        return launcher.returncode

    return run


def newest(folder: Path):
    found = sorted(folder.glob("checkpoint-*.npz"))
    return read_checkpoint(found[-1]) if found else None


def paused_at_23(folder: Path):
    """Whether the newest checkpoint is of the moment at which both have paused, also in what each tells of itself."""
    checkpoint = newest(folder)
    if checkpoint is None or not checkpoint.center:
        return False
    about = checkpoint.about
    told = [(about.positions.get(rank), about.kept.get(rank)) for rank in (0, 1)]
    return checkpoint.center[0][0] == 46 and told == [((3, 3, 23), {"twice": msgspec.msgpack.encode(46)})] * 2


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGKILL, marks=pytest.mark.promise), signal.SIGTERM, signal.SIGINT]
)
def test_a_job_that_was_ended_goes_on_at_the_step_it_had_reached(interrupt, finish, tmp_path, number):
    kept = tmp_path / "kept"

    options = ["--checkpoint-every", "0.05", "--resume", kept, "--seed", 5]
    status = interrupt(*options, pause_at=23, number=number, reached=lambda: paused_at_23(kept))
    assert status == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    summary, starts, output = finish("--resume", kept)
    assert starts == ["starts at (3, 3, 23) kept 46 center 46 seed 5"] * 2
    assert "epoch 3, 46 mini-batches done" in output
    assert summary["center"] == summary["second"] == 80
    # It saved its end, from which there is nothing more to do.
    summary, starts, _ = finish("--resume", kept)
    assert starts == ["starts at (4, 10, 40) kept 80 center 80 seed 5"] * 2
    assert summary["center"] == 80
    clean_up()


def test_another_number_of_workers_goes_on_with_the_epoch(interrupt, finish, tmp_path):
    kept = tmp_path / "kept"
    interrupt("--checkpoint-every", 1000, "--resume", kept, pause_at=23, number=signal.SIGTERM)
    summary, starts, output = finish("--resume", kept, workers=3)
    assert starts[0].startswith("starts at (3, 0, 15) kept 46 center 46")
    assert starts[2].startswith("starts at (3, 0, 15) kept None center 46")
    assert "by 2 workers; now 3, which restart that epoch" in output
    assert summary["center"] == 46 + 3 * 20


@pytest.mark.parametrize("second", [False, True])
def test_a_center_that_is_released_is_saved_first_and_stays(platoon, write_script, tmp_path, second):
    text = COUNT + "worker.release_shared_params()\n"
    if second:
        text += "z = np.full(7, -1.0)\nworker.init_shared_params([z], EASGD(0.5))\nworker.sync_params()\n"
    script, kept = write_script(text), tmp_path / "kept"
    for start in ("starts at (0, 0, 0) kept None center 0", "starts at (4, 10, 40) kept 80 center 80"):
        platoon("launch", "-n", 2, "--log-dir", "logs", "--resume", kept, script, tmp_path, 0).require()
        assert start in (tmp_path / "logs" / "rank1.log").read_text()
        assert [values.max() for values in newest(kept).center] == [80, 80]


SLEEPING_DISK = script_path("resume_sleeping_disk")


def test_a_disk_that_does_not_answer_does_not_keep_a_job_for_ever(write_script, tmp_path):
    """The first write never ends; the first signal ends the workers, the second one the wait for the disk."""
    script = write_script(COUNT)
    command = [sys.executable, SLEEPING_DISK, "launch", "-n", "2", "--checkpoint-every", "1000"]
    with subprocess.Popen(
        [*command, "--log-dir", "logs", "--resume", "kept", str(script), str(tmp_path), "23"], cwd=tmp_path
    ) as launcher:
        try:
            until(lambda: all((tmp_path / f"paused-{rank}").exists() for rank in range(2)), PATIENCE_S)
            children = psutil.Process(launcher.pid).children()
            pids = [child.pid for child in children if "warden" not in "".join(child.cmdline())]  # ends after it
            assert len(pids) >= 2
            launcher.terminate()
            until(lambda: not any(psutil.pid_exists(pid) for pid in pids), PATIENCE_S)
            assert launcher.poll() is None
            launcher.terminate()
            assert launcher.wait(PATIENCE_S) == 143
        finally:
            launcher.kill()


def test_checkpoints_are_beside_the_logs_unless_said_otherwise(finish, platoon, script, tmp_path):
    _, starts, output = finish("--checkpoint-every", "1000")
    assert starts == ["starts at (0, 0, 0) kept None center 0 seed 0"] * 2
    assert "yet: the job starts from the beginning" in output
    with np.load(sorted((tmp_path / "logs" / "checkpoints").iterdir())[-1]) as file:
        np.testing.assert_array_equal(file["center/0"], np.full(4, 80.0))
    # A second run there is taken for a mistake.
    again = platoon("launch", "-n", 2, "--log-dir", "logs", "--checkpoint-every", 9, script, tmp_path, 0).require(2)
    assert "continue from them with --resume logs/checkpoints" in again.stderr


def test_what_cannot_be_resumed_is_refused(finish, platoon, write_script, script, tmp_path):
    kept = tmp_path / "kept"
    finish("--resume", kept, "--seed", 3)
    other = platoon("launch", "-n", 2, "--resume", kept, "--seed", 4, script, tmp_path, 0).require(2)
    assert "got --seed 4," in other.stderr
    assert "has seed 3" in other.stderr
    text = COUNT.replace("np.zeros(4)", "np.zeros(5)")
    platoon("launch", "-n", 2, "--log-dir", "l", "--resume", kept, write_script(text, "other.py"), tmp_path, 0).require(
        1
    )
    # The worker that comes first to it ends the job: the other one may still import.
    assert any(
        "the checkpoint's is parameter 0 float64[4]" in path.read_text() for path in (tmp_path / "l").glob("rank?.log")
    )
    # It did not put anything in the place of the good one.
    assert newest(kept).center[0][0] == 80
    for wrong, complaint in ((["--resume", ""], "empty name"), (["--checkpoint-every", "nan"], "positive number")):
        refused = platoon("launch", "-n", 2, *wrong, script, tmp_path, 0).require(2)
        assert complaint in refused.stderr
    held = CheckpointFolder(kept)
    busy = platoon("launch", "-n", 2, "--resume", kept, script, tmp_path, 0)
    held.close()
    assert busy.returncode == 2
    assert "another job writes its checkpoints" in busy.stderr
    for path in kept.iterdir():
        path.write_bytes(b"nothing")
    damaged = platoon("launch", "-n", 2, "--resume", kept, script, tmp_path, 0).require(2)
    assert "is usable" in damaged.stderr


def test_without_a_center_there_is_nothing_to_go_on_from_but_what_was_kept(platoon, tmp_path):
    script = script_path("resume_without_a_center_there_is_nothing_to_go")
    for resumed, expected in (False, "starts at (0, 0, 0) None"), (True, "starts at (0, 0, 0) [0.5, 'x']"):
        done = platoon("launch", "-n", 1, "--log-dir", "logs", "--resume", "kept", script).require()
        assert expected in (tmp_path / "logs" / "rank0.log").read_text()
        said = " ".join(done.stdout.split())
        assert "have no parameters" in said
        assert ("which has no parameters" in said) == resumed


def test_what_an_earlier_start_saved_and_why_it_ended_is_not_said_of_the_resumed_one(platoon, tmp_path):
    script = script_path("resume_files_of_an_earlier_start")
    told = []
    for files in ["model.npz"], []:
        platoon("launch", "-n", 2, "--resume", "kept", "--summary", "s.json", script, *files).require()
        told.append(json.loads((tmp_path / "s.json").read_text()))
    first, again = told
    assert (first["saved"], first["trained"], first["stopped_by"]) == ("model.npz", "x", "patience")
    assert again["accuracy"] == 0.5
    assert not {"saved", "trained"} & set(again)
    assert again["stopped_by"].startswith("end of script")


def test_a_job_that_trained_nothing_writes_no_checkpoint(platoon, write_script, tmp_path):
    script = write_script("from job_preamble import worker\nworker.barrier('all')\nimport no_such_module_of_the_user")
    options = ["--checkpoint-every", 0.01, "--resume", "kept", "--summary", "s.json"]
    done = platoon("launch", "-n", 2, *options, script).require(1)
    assert list((tmp_path / "kept").glob("*.npz")) == []
    assert json.loads((tmp_path / "s.json").read_text())["checkpoints"] == 0
    assert "no parameters" not in done.stdout + done.stderr


def test_a_full_disk_is_an_error_before_the_training(platoon, small_disk, tmp_path):
    script = script_path("resume_a_full_disk_is_an_error_before_the_training")
    done = platoon("launch", "-n", 2, "--checkpoint-every", 1000, "--resume", small_disk / "kept", script).require(2)
    assert "cannot write a checkpoint to" in done.stderr
    assert "No space left on device. Make room" in done.stderr
    assert list((small_disk / "kept").glob("*.npz")) == []
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize))
    done = platoon("launch", "-n", 2, "--log-dir", small_disk / "logs", script).require(2)
    assert "cannot write logs to" in done.stderr
    assert "0.0 MB free" in done.stderr


def test_a_full_disk_is_an_error_also_where_parameters_are_shared_later(platoon, small_disk):
    """Checkpoints without a center are small, and say nothing about the room for one that has it."""
    kept = small_disk / "kept"
    script = script_path("resume_a_full_disk_is_an_error_also")
    done = platoon("launch", "-n", 2, "--checkpoint-every", 0.05, "--resume", kept, script, kept).require(2)
    assert "No space left on device. Make room" in done.stderr
    assert all(not read_checkpoint(path).center for path in kept.glob("checkpoint-*.npz"))


@pytest.fixture
def in_trouble(platoon, tmp_path):
    """Run one worker to which something happens; return status, output, summary, and the newest center's value."""

    def run(kept, what, release=False, options=()):
        script = script_path("resume_trouble")
        done = platoon(
            *("launch", "-n", 1, "--log-dir", "logs", "--summary", "s.json", "--resume", kept, *options),
            *(script, kept, what, release),
        )
        assert (tmp_path / "s.json").exists(), done.stdout + done.stderr + (tmp_path / "logs/rank0.log").read_text()
        found = newest(kept)
        summary = json.loads((tmp_path / "s.json").read_text())
        return done.returncode, done.stdout, summary, None if found is None else found.center[0].max()

    return run


@pytest.mark.parametrize("release", [pytest.param(False, marks=pytest.mark.promise), True])
def test_a_center_whose_name_is_gone_is_saved(in_trouble, tmp_path, release):
    """systemd-logind's RemoveIPC removes the names of shared memory when a user logs out."""
    status, output, summary, value = in_trouble(tmp_path / "kept", "names are removed", release)
    assert (status, value) == (0, 10), output
    assert (summary["checkpoints"], summary["checkpoints_missed"]) == (2, 0)
    assert "not_saved" not in summary


@pytest.mark.parametrize(
    ("options", "release"),
    [pytest.param((), False, marks=pytest.mark.promise), ((), True), (("--allow-failures",), False)],
)
def test_a_job_whose_end_cannot_be_saved_is_no_success(in_trouble, small_disk, options, release):
    status, output, summary, value = in_trouble(small_disk / "kept", "the disk is full", release, options)
    assert (status, value) == (2, 0), output
    assert (summary["status"], summary["checkpoints"], summary["checkpoints_missed"]) == (2, 1, 1)
    assert "No space left on device" in summary["not_saved"]
    assert "the end of this job is in no checkpoint: [Errno 28] No space left" in output


def test_checkpoints_that_are_missed_meanwhile_are_counted_and_shown(in_trouble, small_disk, tmp_path):
    """The disk is full for a while."""
    status, output, summary, value = in_trouble(
        small_disk / "kept", "the disk is full for a while", options=("--checkpoint-every", "0.02")
    )
    assert (status, value) == (0, 10), output
    assert summary["checkpoints_missed"] >= 1
    assert "not_saved" not in summary
    assert "1 missed so far: [Errno 28] No space left on device" in output
    assert "CHECKPOINTS MISSED" in output
    story = [entry.line for entry in read_story(tmp_path / "logs")]
    assert any("checkpoint: not written, 1 missed ([Errno 28] No space left on device" in line for line in story), story


def test_the_launcher_does_not_keep_what_it_resumes(platoon, tmp_path):
    script = script_path("resume_the_launcher_does_not_keep_what_it_resumes")
    used = {}
    for numbers in (1, 30_000_000):
        for _ in range(2):
            options = "--log-dir", f"logs{numbers}", "--resume", f"kept{numbers}"
            environment = {"NUMBERS": str(numbers), "PLATOON_NO_PREFORK": "1"}
            platoon("launch", "-n", 1, *options, script, environment=environment).require()
        lines = (tmp_path / f"logs{numbers}" / "rank0.log").read_text().split()
        used[numbers] = int(lines[-1])
    assert used[30_000_000] - used[1] < 100e6, "of 240 MB"


@pytest.mark.promise
def test_another_rule_is_refused_and_another_argument_is_said(platoon, write_script, tmp_path):
    text = """
        import numpy as np
        from platoon_base import ASGD, EASGD, connect
        worker = connect()
        x = np.zeros(3)
        worker.init_shared_params([x], {rule})
        print("shared", flush=True)
        """
    outcomes = []
    for rule in ("EASGD(0.5)", "ASGD()", "EASGD(0.25)"):
        script = write_script(text.format(rule=rule))
        done = platoon("launch", "-n", 1, "--log-dir", "logs", "--resume", "kept", script)
        log = tmp_path / "logs" / "rank0.log"
        outcomes.append((done.returncode, log.read_text()))
        log.unlink()
    assert [status for status, _ in outcomes] == [0, 1, 0]
    assert "got the rule ASGD" in outcomes[1][1]
    assert "the checkpoint is of the rule EASGD" in outcomes[1][1]
    assert "numpy.load" in outcomes[1][1]
    assert "is of the rule EASGD(alpha=0.5); the job continues with EASGD(alpha=0.25)" in outcomes[2][1]


@pytest.mark.promise
def test_resumed_workers_may_be_at_other_data(platoon, tmp_path):
    """Each goes on in an epoch of its own, with the rows of that epoch; those at one place are still compared."""
    script = script_path("resume_resumed_workers_may_be_at_other_data")
    for run, workers in enumerate([2, 2, 3]):
        options = ["--resume", "kept", "--checkpoint-every", 1000, "--summary", "s.json", "--log-dir", "logs"]
        platoon("launch", "-n", workers, *options, script, run).require()
    reported = json.loads((tmp_path / "s.json").read_text())
    assert [reported[f"run 1: epochs of rank {rank} before"] for rank in range(2)] == [1, 2]
    assert [reported[f"run 2: epochs of rank {rank} before"] for rank in range(3)] == [3, 3, 3]
    assert {name for name in reported if "refused" in name} == {"run 0: refused", "run 2: refused"}
    assert "data set 1 of rows like int64[2] from epoch 3, mini-batch" in reported["run 2: refused"]


POSITIONS = script_path("resume_positions")


@pytest.mark.promise
def test_a_position_is_counted_when_the_center_has_its_steps_and_not_before(platoon, tmp_path):
    """What is in the position is not done again: counted too early, a death would lose these steps."""
    logs = platoon("launch", "-n", 2, "--log-dir", "logs", POSITIONS).require().logs
    assert all("all positions seen" in log for log in logs)
