"""What another terminal does with a running job: list it, watch it, read its logs, end it."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from scripts_here import script_path
from watching import PATIENCE_S, await_file, until

from platoon_base.channels.client import ControlClient
from platoon_base.coordination import messages as msg
from platoon_base.errors import ProtocolError
from platoon_base.job.backends import connect_to
from platoon_base.job.files import running, segment_prefix
from platoon_base.shm.segments import SHM_FOLDER

pytestmark = pytest.mark.base

PLATOON = [sys.executable, "-m", "platoon_base"]
TRAIN = script_path("job_commands_train").read_text()


class Running:
    """A job of two workers that train until they are told to end, or until a file named "go on" is there."""

    def __init__(self, folder, launcher):
        self.folder = folder
        self.launcher = launcher
        self.pids = [int(await_file(folder / f"ready{rank}", launcher)) for rank in range(2)]
        (self.files,) = (files for files in running() if files.origin.pid == launcher.pid)
        self.job = self.files.job

    def let_end(self):
        (self.folder / "go on").touch()

    def log(self, rank):
        return (self.folder / "logs" / f"rank{rank}.log").read_text()


@pytest.fixture
def launch(tmp_path, write_script):
    with contextlib.ExitStack() as stack:

        def run(*options, text=TRAIN, folder=tmp_path):
            script = write_script(text, "train.py")
            output = stack.enter_context((folder / "output").open("w"))
            launcher = subprocess.Popen(
                [*PLATOON, "launch", "-n", "2", "--log-dir", "logs", *options, script, "--rate", "0.1"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            stack.callback(launcher.wait, PATIENCE_S)
            stack.callback(launcher.kill)
            stack.callback(launcher.send_signal, signal.SIGCONT)
            return Running(folder, launcher)

        yield run


@pytest.mark.promise
def test_a_running_job_is_listed_watched_and_its_logs_are_shown(platoon, launch, tmp_path):
    job = launch()

    done = platoon("jobs")
    heading, row, logs = done.stdout.splitlines()
    assert heading.split() == ["job", "age", "workers", "devices", "script"]
    assert re.fullmatch(rf"{job.job}  +\d+ s +2: 2 training +2 cpu +train\.py --rate 0\.1", row)
    assert logs == "  logs: logs"
    (told,) = json.loads(platoon("jobs", "--json").stdout)
    assert told["script"] == f"{tmp_path}/train.py --rate 0.1"
    assert (told["job"], told["pid"], told["devices"]) == (job.job, job.launcher.pid, ["cpu", "cpu"])
    assert told["logs"] == str(tmp_path / "logs")

    for name in ([], [job.job[:5]]):
        lines = platoon("top", "--once", *name).stdout.splitlines()
        assert lines[0] == f"job {job.job}: train.py, logs in {tmp_path}/logs"
        assert [line.split()[:4] for line in lines[3:5]] == [[str(rank), "cpu", "training", "3"] for rank in range(2)]
        assert re.search("^val_loss 0.5$", "\n".join(lines), re.MULTILINE)

    assert platoon("logs", job.job).stdout == "[0] first line\n[1] first line\n"
    assert platoon("logs", "--rank", 1).stdout == "first line\n"
    done = platoon("logs", "--rank", 2)
    assert (done.returncode, done.stdout) == (2, "")
    assert "got --rank 2: " in done.stderr
    assert "has logs of ranks 0, 1" in done.stderr

    channel = connect_to(job.files, lambda: True)
    with contextlib.closing(channel), pytest.raises(ProtocolError, match="got protocol 1, and this job uses"):
        ControlClient(channel, -1).ask(msg.Watch(protocol=1), msg.Seen, PATIENCE_S)

    follow = [subprocess.Popen([*PLATOON, *words], stdout=subprocess.PIPE) for words in (["logs", "-f"], ["top"])]
    assert follow[0].stdout.readline() == b"[0] first line\n"
    assert follow[1].stdout.readline().startswith(b"job ")
    assert b"2 training" in follow[1].stdout.readline()
    job.let_end()
    logs, shown = (process.stdout.read().decode() for process in follow)
    for process in follow:
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
    assert sorted(logs.splitlines()) == ["[0] last line", "[1] first line", "[1] last line"]
    assert shown.splitlines()[-1] == f"job {job.job} has ended"
    assert job.launcher.wait(PATIENCE_S) == 0

    assert platoon("logs", "--rank", 0, "-n", 1, "logs").stdout == "last line\n", "the folder does after the end"
    done = platoon("jobs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "you have no running job\n")
    done = platoon("top").require(2)
    assert done.stderr == "platoon: you have no running job: start one with `platoon launch`\n"


def test_what_has_happened_in_a_job_is_shown_while_it_runs_and_after_its_end(platoon, launch):
    job = launch("--max-restarts", "1")
    os.kill(job.pids[1], signal.SIGKILL)
    until(lambda: job.log(1).count("first line") == 2)
    until(lambda: "rank 1: joined late -> training late" in platoon("jobs", "--story", job.job[:5]).stdout)
    for name in ([], [job.job]):
        lines = [line.split("  ", 1) for line in platoon("jobs", "--story", *(name or [""])).stdout.splitlines()]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", when) for when, _ in lines)
        assert lines == sorted(lines, key=lambda line: line[0])
        found = [re.sub(r"process \d+ on .+\)", "process)", what.replace("ranks 0, 1", "rank 1")) for _, what in lines]
        assert [what for what in found if what.startswith("rank 1")] == [
            "rank 1: expected -> joined (process)",
            "rank 1: joined -> training",
            "rank 1: training -> lost (killed by SIGKILL without leaving the job)",
            "rank 1: lost -> expected late (restarting rank 1, restart 1 of 1)",
            "rank 1: expected late -> joined late (process)",
            "rank 1: joined late -> training late",
        ]
    assert platoon("stop", job.job).returncode == 0
    assert job.launcher.wait(PATIENCE_S) == 128 + signal.SIGINT

    after = json.loads(platoon("jobs", "--json", "--story", "logs").stdout)
    assert {tuple(entry) for entry in after} == {("when", "who", "numbers", "from", "to", "why")}
    (stopped,) = (entry for entry in after if entry["who"] == "job" and entry["to"] == "stops")
    assert stopped["why"] == "platoon stop"
    assert any(entry["to"] == "lost" and entry["numbers"] == [1] and entry["why"] for entry in after)
    done = platoon("jobs", "--story", "nowhere").require(2)
    assert "you have no running job" in done.stderr


def test_a_terminal_gets_the_live_table_and_ctrl_c_ends_the_view_alone(launch):
    job = launch()
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    top = subprocess.Popen(
        [*PLATOON, "top", job.job],
        stdin=end,
        stdout=end,
        stderr=end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "", "LINES": ""},
        start_new_session=True,
    )
    os.close(end)
    shown = b""
    while shown.count(b"val_loss 0.5") < 2:  # drawn anew
        shown += os.read(terminal, 4096)
    assert b"\x1b[" in shown
    assert b"1 cpu   training" in re.sub(rb"\x1b\[[0-9;]*m", b"", shown)
    top.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # Linux has no end of file here
        while os.read(terminal, 4096):
            pass
    assert top.wait(PATIENCE_S) == 0
    os.close(terminal)
    follow = subprocess.Popen([*PLATOON, "logs", "-f", "--rank", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert follow.stdout.readline() == b"first line\n"
    follow.send_signal(signal.SIGINT)
    assert follow.stdout.read() == b""
    follow.stdout.close()
    assert follow.wait(PATIENCE_S) == 0
    assert job.files.alive
    job.let_end()
    assert job.launcher.wait(PATIENCE_S) == 0


@pytest.mark.promise
def test_stop_ends_a_job_as_ctrl_c_does(platoon, launch, tmp_path):
    job = launch("--checkpoint-every", "600", "--summary", "out.json")
    done = platoon("stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"stopping job {job.job} (train.py)\njob {job.job} (train.py) has ended\n"
    assert job.launcher.wait(PATIENCE_S) == 128 + signal.SIGINT
    logs = [job.log(rank) for rank in range(2)]
    assert all("saved\n" in log for log in logs), logs
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["stopped_by"] == "platoon stop"
    assert told["checkpoints"] >= 1


def test_stop_without_a_name_ends_no_job_of_another_folder_unasked(launch):
    job = launch()

    def stop_elsewhere(**streams):
        return subprocess.Popen([*PLATOON, "stop"], cwd="/", text=True, stderr=subprocess.PIPE, **streams)

    with stop_elsewhere(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as done:
        error = done.stderr.read()
    assert done.returncode == 2
    assert error == (
        "platoon: no job of yours was launched from this folder: name the job to stop, one of "
        f"{job.job} (train.py, from {job.folder})\n"
    )
    for answer in ("n", "y"):
        assert job.files.alive
        terminal, end = pty.openpty()
        with stop_elsewhere(stdin=end, stdout=end) as asked:
            os.close(end)
            os.write(terminal, f"{answer}\n".encode())
            shown = b""
            with contextlib.suppress(OSError):  # Linux has no end of file here
                while data := os.read(terminal, 4096):
                    shown += data
            os.close(terminal)
            error = asked.stderr.read()
        # Python's input() may show its question on either stream.
        assert f"job {job.job} (train.py) was launched from {job.folder}: stop it? [y/N]" in shown.decode() + error
        assert asked.returncode == (1 if answer == "n" else 0)
    assert job.launcher.wait(PATIENCE_S) == 128 + signal.SIGINT


STUBBORN = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + TRAIN


def test_the_time_to_save_may_be_given_and_a_second_stop_waits_no_longer(platoon, launch):
    job = launch("--grace", "600", text=STUBBORN)
    done = platoon("stop", "--wait", 0, job.job[:4]).require(1)
    assert f"job {job.job} (train.py) is still running: a second `platoon stop` kills its workers" in done.stderr
    assert job.files.alive
    assert platoon("top", "--once").stdout.count("stopping: platoon stop") == 1
    assert platoon("stop", job.job).returncode == 0
    assert job.launcher.wait(PATIENCE_S) == 128 + signal.SIGINT
    assert (
        "workers 0, 1: killed by SIGKILL, because the job had to end immediately" in (job.folder / "output").read_text()
    )

    os.remove(job.folder / "ready0"), os.remove(job.folder / "ready1")
    job = launch("--grace", "600", text=STUBBORN)
    assert platoon("stop", "--grace", 0).returncode == 0
    assert job.launcher.wait(PATIENCE_S) == 128 + signal.SIGINT
    assert "workers 0, 1: killed by SIGTERM, because the grace period was over" in (job.folder / "output").read_text()


def test_a_job_whose_launcher_hangs_is_killed(platoon, launch):
    job = launch()
    job.launcher.send_signal(signal.SIGSTOP)
    done = platoon("stop", job.job).require(2)
    assert f"did not answer within 5 s: try again, or kill it with `platoon stop --kill {job.job}`" in done.stderr
    assert "2: no answer" in platoon("jobs").stdout
    done = platoon("stop", "--kill", job.job)
    assert (done.returncode, done.stdout) == (0, f"killed job {job.job} (train.py)\n")
    assert job.launcher.wait(PATIENCE_S) == -signal.SIGKILL
    until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and is_alive(pid) for pid in job.pids))
    assert not Path(job.files.folder).exists()
    assert list(SHM_FOLDER.glob(f"*{job.job}*")) == []


STUCK = {"stopped": "os.kill(os.getpid(), signal.SIGSTOP)", "holds the GIL": "ctypes.PyDLL(None).sleep(600)"}


@pytest.mark.parametrize("how", [pytest.param("stopped", marks=pytest.mark.promise), "holds the GIL"])
def test_workers_that_a_killed_launcher_has_left_stuck_are_killed(platoon, launch, how):
    """With what they have started in their process group; the memory and the folder of the job are removed."""
    begin = 'import ctypes, signal, subprocess\nchild = subprocess.Popen(["sleep", "600"])'
    tell = """
def tell():
    for name, pid in (("ready", os.getpid()), ("child", child.pid)):
        with open(f"unfinished{worker.global_rank}", "w") as file:
            file.write(str(pid))
        os.rename(file.name, f"{name}{worker.global_rank}")

"""
    text = TRAIN.replace("count = 0\n", f"count = 0\n{begin}{tell}")
    text = text.replace("try:\n", f"if worker.global_rank:\n    tell()\n    {STUCK[how]}\ntry:\n", 1)
    job = launch(text=text)
    child = int(await_file(job.folder / "child1"))
    job.launcher.kill()
    job.launcher.wait()
    done = platoon("stop", "--kill", "--yes", job.job)
    assert (done.returncode, done.stdout) == (0, f"killed job {job.job} (train.py)\n"), done.stderr
    until(lambda: not any(map(is_alive, [*job.pids, child])))
    assert not Path(job.files.folder).exists()
    assert list(SHM_FOLDER.glob(f"*{job.job}*")) == []


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_names_of_other_jobs_are_answered_with_what_there_is(platoon, launch):
    job = launch()
    similar = ("f" if job.job[0] != "f" else "0") + job.job[1:]
    for command in ("top", "stop", "logs"):
        done = platoon(command, similar).require(2)
        assert f"there is no running job '{similar}' among your 1; did you mean {job.job}?" in done.stderr
    done = platoon("stop", "zzz")
    assert "there is no running job 'zzz' among your 1: `platoon jobs` lists them" in done.stderr
    job.launcher.kill()
    job.launcher.wait()
    job.let_end()
    until(lambda: not any(map(is_alive, job.pids)))  # until then the job lives in its workers
    done = platoon("top", job.job).require(2)
    assert f"job {job.job} is dead" in done.stderr or "you have no running job" in done.stderr


def test_a_job_of_another_user_is_named_as_such(platoon):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file to another user")
    job = "0123456789ab"
    path = SHM_FOLDER / f"{segment_prefix().strip('/-')}x-{job}-state"
    path.touch()
    try:
        os.chown(path, 65534, -1)
        done = platoon("stop", job)
    finally:
        path.unlink()
    assert done.returncode == 2
    assert f"job {job} belongs to user nobody: you can list, watch and stop only your own jobs" in done.stderr


def test_a_controller_at_a_port_is_asked_with_the_keys_of_its_job(platoon, serve):
    controller, port = serve()
    (told,) = json.loads(platoon("jobs", "--json").stdout)
    assert told["title"] == f"script0.py --control-port={port}"
    assert told["pid"] == controller.pid
    done = platoon("stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert controller.wait(PATIENCE_S) == 128 + signal.SIGINT
