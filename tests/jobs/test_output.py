"""What a user sees of the workers while they run: output, failures, and the files in which they are kept."""

import contextlib
import functools
import json
import os
import pty
import re
import signal
import time

import pytest
from scripts_here import script_path
from watching import until

from platoon_base.cli.worker_output import name_workers

pytestmark = pytest.mark.base


@pytest.fixture
def start(start_platoon):
    return functools.partial(start_platoon, "launch", text=False)


def await_line(launcher, pattern):
    """Read the launcher's output up to a line; return the lines so far."""
    lines = []
    for raw in launcher.stdout:
        lines.append(raw.decode())
        if re.search(pattern, lines[-1]):
            return lines
    raise AssertionError("".join(lines))


WAITING = """
    import sys
    from platoon_base import connect

    def fail(worker):
        raise {error}

    worker = connect()
    worker.barrier()
    print("hello from", worker.global_rank)
    if worker.global_rank == 1:
        fail(worker)
    open(sys.argv[1]).read()
"""


@pytest.mark.parametrize(
    ("tee", "shown"), [("0", {"hello from 0"}), ("all", {"hello from 0", "[1] hello from 1"}), ("none", set())]
)
def test_the_output_of_the_workers_that_are_asked_for_is_shown(platoon, write_script, tmp_path, tee, shown):
    script = write_script(
        "from platoon_base import connect\nprint('hello from', connect().global_rank)\nconnect().barrier()"
    )
    done = platoon("launch", "-n", 2, "--tee", tee, "--log-dir", "logs", script).require()
    assert {line for line in done.stdout.splitlines() if "hello" in line} == shown
    assert [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(2)] == [
        "hello from 0\n",
        "hello from 1\n",
    ]


@pytest.mark.promise
def test_a_failure_is_shown_while_the_others_go_on(start, write_script, tmp_path):
    """And also if the job is ended by Ctrl-C afterwards; the failure is what stopped it."""
    os.mkfifo(tmp_path / "fifo")
    script = write_script(WAITING.format(error="RuntimeError('the reason why')"))
    launcher = start("-n", 2, "--log-dir", "logs", "--summary", "out.json", script, "fifo")
    text = "".join(await_line(launcher, "^RuntimeError: the reason why"))
    assert re.search("worker 1 failed: RuntimeError: the reason why\n", text)
    assert f"  at {script}:6, in fail: raise RuntimeError('the reason why')\n  log: logs/rank1.log\n" in text
    assert "platoon_base" not in text
    launcher.send_signal(signal.SIGINT)
    rest = launcher.stdout.read().decode()
    assert launcher.wait(60) == 128 + signal.SIGINT
    assert "Traceback" not in rest, "the failure is shown once, and that of Ctrl-C is none"
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["stopped_by"] == "SIGINT"
    assert summary["first_failure"] == "worker 1: RuntimeError: the reason why (script.py:6)"
    assert "\nworker 0: interrupted, see logs/rank0.log\n" in rest, "no signal's name: Ctrl-C is no failure"
    assert not re.search(r"worker 0 lost|SIGINT, see", rest)


def test_the_same_failure_of_several_is_shown_once(platoon, tmp_path):
    script = script_path("output_the_same_failure_of_several_is_shown_once")
    done = platoon("launch", "-n", 4, "--log-dir", "logs", script).require(1)
    assert done.stdout.count("Traceback") == 1
    too = rf"^workers? ([0-9, to]+) too: ValueError .{script.name}:4.$"
    again = re.findall(too, done.stdout, re.MULTILINE)
    first = re.findall("^worker (.) failed: ValueError: worker . has a bad file$", done.stdout, re.MULTILINE)
    assert len(first) == 1
    named = {rank for text in again for begin, _, end in [text.partition(" to ")] for rank in (begin + end)}
    assert named.isdisjoint(first)
    assert "workers 0 to 3: exit status 1" in done.stdout
    assert len(list(tmp_path.glob("logs/rank?.error.json"))) == 4


def test_failures_of_one_moment_are_shown_in_their_order(platoon, write_script, tmp_path):
    script = write_script(
        """
        from job_preamble import os, until, worker

        worker.progress(steps=1)
        worker.barrier("both began")
        if worker.global_rank == 1:
            raise ValueError("the first")
        until(lambda: os.path.exists("logs/rank1.error.json"))
        os._exit(3)
        """
    )
    done = platoon("launch", "-n", 2, "--log-dir", "logs", "--summary", "out.json", script).require(3)
    assert re.findall(r"^worker (.)(?: failed: ValueError|: exit status 3; the end)", done.stdout, re.M) == ["1", "0"]
    assert json.loads((tmp_path / "out.json").read_text())["first_failure"].startswith("worker 1: ValueError")


def test_workers_are_named_shortly():
    assert name_workers([3]) == "worker 3"
    assert name_workers([5, 0, 2, 3, 4]) == "workers 0, 2 to 5"
    assert name_workers([1, 0]) == "workers 0, 1"


def test_those_that_fail_because_another_is_gone_are_told_after_it(platoon, tmp_path):
    script = script_path("output_those_that_fail_because_another_is_gone")
    done = platoon("launch", "-n", 3, "--summary", "out.json", script).require(137)
    text = done.stdout
    assert "worker 1: killed by SIGKILL; the end of" in text
    assert "Traceback" not in text[: text.index("SIGKILL")]
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["first_failure"] == "worker 1: killed by SIGKILL"
    assert summary["stopped_by"] == "end of script", "the others have trained to the end"


@pytest.mark.promise
def test_a_worker_that_writes_much_without_an_end_of_line_disturbs_nothing(start, tmp_path):
    """Its log is complete, the screen shows a bit of it, and the others' lines come as ever."""
    os.mkfifo(tmp_path / "fifo")
    script = script_path("output_a_worker_that_writes_much_without_an_end")
    launcher = start("-n", 2, "--tee", "all", "--log-dir", "logs", script)
    lines = await_line(launcher, r"^\[1\] still here$")
    (tmp_path / "fifo").write_text("")
    lines.append(launcher.stdout.read().decode())
    assert launcher.wait(60) == 0
    assert sum(map(len, lines)) < 20_000
    assert (tmp_path / "logs" / "rank0.log").stat().st_size == 64 * 2**20


def test_a_reader_that_does_not_read_does_not_stop_the_job(start, tmp_path):
    script = script_path("output_a_reader_that_does_not_read_does_not_stop")
    launcher = start("-n", 2, script)
    until((tmp_path / "done").exists)
    launcher.stdout.read()
    assert launcher.wait(60) == 0


@pytest.mark.promise
def test_the_error_files_are_those_of_torchelastic(platoon, tmp_path):
    script = script_path("output_the_error_files_are_those_of_torchelastic")
    outer = tmp_path / "outer.json"
    environment = {"TORCHELASTIC_ERROR_FILE": str(outer)}
    platoon("launch", "-n", 2, "--log-dir", "logs", script, environment=environment).require(1)
    files = [tmp_path / "logs" / "rank1.error.json", tmp_path / "logs" / "error.json", outer]
    for path in files:
        message = json.loads(path.read_text())["message"]
        assert message["message"] == "RuntimeError: the reason why"
        assert message["extraInfo"]["py_callstack"].endswith("\nRuntimeError: the reason why\n")
        assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 60
    assert not (tmp_path / "logs" / "rank0.error.json").exists()
    with contextlib.suppress(ImportError):
        from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

        for path in files:
            assert ProcessFailure(1, 0, 1, str(path)).message["message"] == "RuntimeError: the reason why"


@pytest.mark.parametrize(("code", "shown"), [("'the reason'", "SystemExit: the reason"), ("3", "exit status 3")])
def test_a_script_that_exits_is_told_with_its_line(platoon, write_script, code, shown):
    done = platoon("launch", "-n", 1, write_script(f"import sys\nprint('before')\nsys.exit({code})")).require(
        3 if code == "3" else 1
    )
    assert shown in done.stdout
    assert "script.py:3" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_terminal_shows_output_above_the_table(start, write_script):
    ours, theirs = pty.openpty()
    script = write_script("print('\\033[32mgreen\\033[0m')\nprint('10%\\r100%')\nraise KeyError('x')")
    environment = {"TERM": "xterm", "COLUMNS": "80"}
    launcher = start("-n", 1, script, stdin=theirs, stdout=theirs, stderr=theirs, environment=environment)
    os.close(theirs)
    output = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while data := os.read(ours, 4096):
            output += data
    os.close(ours)
    assert launcher.wait(60) == 1
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode()).replace("\r", "")
    assert b"\x1b[32mgreen" in output
    assert "100%\n" in text
    assert "10%100%" not in text
    assert text.index("green") < text.index("worker 0 failed: KeyError: 'x'") < text.rindex("1 worker on cpu")


def test_logging_is_the_scripts_own(platoon, tmp_path):
    """Others say no more than under plain Python, and `basicConfig` counts; what we log has the rank before it."""
    script = script_path("output_logging_is_the_scripts_own")
    platoon("launch", "-n", 1, "--log-dir", "logs", script).require()
    first, second, third = (tmp_path / "logs" / "rank0.log").read_text().splitlines()
    assert first.endswith("rank 0 INFO platoon_base.library: ours")
    assert (second, third) == ("beware", "<asked for>")
