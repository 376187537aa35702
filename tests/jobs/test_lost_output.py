"""Output that cannot be written: the job goes on, its end is saved, and the exit status is that of the training."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base

PLATOON = [sys.executable, "-m", "platoon_base"]
TRAINING = script_path("lost_output_training")
LAUNCH = ["launch", "-n", "2", "--checkpoint-every", "100", "--log-dir", "logs", "--summary", "out.json", TRAINING]


def require_whole(folder):
    for rank in range(2):
        assert (folder / "logs" / f"rank{rank}.log").read_text().endswith("trained to the end\n")
    summary = json.loads((folder / "out.json").read_text())
    assert (summary["status"], summary["stopped_by"]) == (0, "end of script")
    assert summary["checkpoints"] >= 1
    assert list((folder / "logs" / "checkpoints").glob("*.npz"))


def test_a_reader_that_has_gone(start_platoon, tmp_path):
    """As with ``| head -1``."""
    launcher = start_platoon(*LAUNCH, stderr=subprocess.PIPE)
    launcher.stdout.readline()
    launcher.stdout.close()
    (tmp_path / "go").touch()
    assert launcher.stderr.read() == ""
    assert launcher.wait(60) == 0
    require_whole(tmp_path)


@pytest.mark.promise
def test_a_full_disk_under_the_output(start_platoon, tmp_path):
    with open("/dev/full", "w") as full:
        launcher = start_platoon(*LAUNCH, stdout=full, stderr=subprocess.PIPE)
    (tmp_path / "go").touch()
    assert launcher.stderr.read() == (
        "platoon: a part of this output could not be written (No space left on device); the workers' output is in "
        "logs\n"
    )
    assert launcher.wait(60) == 0
    require_whole(tmp_path)


def test_a_full_disk_under_the_logs(platoon, small_disk, tmp_path):
    """Training goes on, and a failure is shown though neither a log nor an error file could be written."""
    done = platoon("launch", "-n", 2, "--log-dir", small_disk / "logs", script_path("lost_output_full_disk"))
    shown = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert shown.count("(No space left on device): the output of the workers is lost") == 1, shown
    assert "worker 1 failed: ValueError: the disk is full" in shown + done.stderr
    assert (tmp_path / "result0").read_text() == "100.0"


def test_a_terminal_that_has_gone(start_platoon, tmp_path):
    """Where nohup or the like keeps the job from SIGHUP."""
    ours, theirs = pty.openpty()
    terminal = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "environment": {"TERM": "xterm"}}
    launcher = start_platoon(*LAUNCH, **terminal, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    os.close(theirs)
    read = b""
    while b"begun" not in read:
        read += os.read(ours, 4096)
    os.close(ours)
    (tmp_path / "go").touch()
    assert launcher.wait(60) == 0
    require_whole(tmp_path)


@pytest.mark.parametrize("closed", ["1>&-", "0<&- 1>&- 2>&-"])
def test_output_that_is_closed_from_the_begin(tmp_path, closed):
    command = f'exec "$@" {closed}'
    launcher = subprocess.Popen(["sh", "-c", command, "sh", *PLATOON, *LAUNCH], cwd=tmp_path)
    (tmp_path / "go").touch()
    assert launcher.wait(60) == 0
    require_whole(tmp_path)


def test_a_summary_that_cannot_be_written_is_said_and_changes_no_status(platoon, write_script):
    done = platoon("launch", "-n", 1, "--summary", "/dev/full", write_script("print('trained')")).require()
    first, *lines = done.stderr.splitlines()
    assert first == "platoon: cannot write the summary to /dev/full (No space left on device). It is:"
    assert json.loads("\n".join(lines))["stopped_by"] == "end of script"


@pytest.mark.parametrize("words", [["--summary", "."], ["--summary", "none/out.json"]])
def test_a_summary_that_can_never_be_written_is_refused_at_the_start(platoon, write_script, tmp_path, words):
    done = platoon("launch", "-n", 1, *words, write_script("open('ran', 'w')")).require(2)
    assert "--summary" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("words", [["jobs", "--json"], ["logs", "logs"], ["doctor"], ["--version"]])
def test_other_commands_say_that_their_output_cannot_be_written(start_platoon, words, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank0.log").write_text("a line\n")
    with open("/dev/full", "w") as full:
        done = start_platoon(*words, stdout=full, stderr=subprocess.PIPE)
    assert done.communicate(timeout=120)[1] == "platoon: cannot write the output: No space left on device\n"
    assert done.returncode == 1


def test_logs_that_are_followed_end_with_their_reader(start_platoon, tmp_path):
    launcher = start_platoon("launch", "-n", "2", "--log-dir", "logs", TRAINING)
    while "begun" not in launcher.stdout.readline():
        assert launcher.poll() is None
    viewer = start_platoon("logs", "-f", stderr=subprocess.PIPE)
    viewer.stdout.readline()
    viewer.stdout.close()
    (tmp_path / "go").touch()
    launcher.stdout.read()
    assert viewer.wait(60) in (0, 1)
    assert viewer.stderr.read() == ""
    assert launcher.wait(60) == 0
