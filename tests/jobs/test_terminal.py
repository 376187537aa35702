"""The terminal of the launcher in a worker: `breakpoint()`, and scripts that are typed into it."""

import contextlib
import os
import pty
import re
import signal
import sys

import pytest
from scripts_here import script_path

pytestmark = pytest.mark.base

LAUNCH = [sys.executable, "-m", "platoon_base", "launch"]


class Session:
    """`platoon launch` on a terminal of its own, as a user sits at it."""

    def __init__(self, folder, *words, environment=None):
        self.seen = ""
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ.update({"TERM": "xterm", "COLUMNS": "80", "LINES": "24", **(environment or {})})
            os.execv(sys.executable, [*LAUNCH, *map(str, words)])
        self.pid = pid

    def read_until(self, pattern):
        read = ""
        while not re.search(pattern, read):
            try:
                data = os.read(self._terminal, 4096)
            except OSError:  # EIO: the other end is closed
                break
            read += data.decode(errors="replace")
        self.seen += read
        assert re.search(pattern, read), f"no {pattern!r} in:\n{self.seen}"
        return read

    def type(self, line):
        os.write(self._terminal, f"{line}\n".encode())

    def end(self):
        with contextlib.suppress(OSError):
            while data := os.read(self._terminal, 4096):
                self.seen += data.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self._terminal)
        self.pid = None
        return os.waitstatus_to_exitcode(status)

    def close(self):
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)
            self.end()


@pytest.fixture
def session(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(*words, **kwargs):
            found = Session(tmp_path, *words, **kwargs)
            stack.callback(found.close)
            return found

        yield start


@pytest.mark.parametrize("alone", ["", "1"], ids=["forked", "alone"])
def test_a_breakpoint_of_the_only_worker_has_the_terminal(session, tmp_path, alone):
    script = script_path("terminal_a_breakpoint_of_the_only_worker")
    launched = session("-n", 1, "--log-dir", "logs", script, environment={"PLATOON_NO_PREFORK": alone})
    before = launched.read_until(r"\(Pdb\) ")
    assert "worker 0 is at a breakpoint: the table is off from here on" in before
    shown = "breakpoint()" if sys.version_info >= (3, 13) else 'worker.report({"x": x})'
    assert f"-> {shown}" in before, "the debugger shows the line where it is"
    launched.type("p x + 1")
    assert "42" in launched.read_until(r"\(Pdb\) ")
    launched.type("!x = 5")
    launched.read_until(r"\(Pdb\) ")
    launched.type("c")
    assert launched.end() == 0, launched.seen
    assert "x is 5\n" in (tmp_path / "logs" / "rank0.log").read_text()
    assert re.search(r"\bx +5\b", launched.seen)
    assert not (tmp_path / "logs" / "rank0.terminal").exists()


def test_ctrl_c_at_a_breakpoint_ends_the_job(session, write_script):
    launched = session("-n", 1, write_script("breakpoint()\nprint('not here')"))
    launched.read_until(r"\(Pdb\) ")
    launched.type("\x03")
    assert launched.end() == 128 + signal.SIGINT, launched.seen
    assert "not here" not in launched.seen.partition("(Pdb)")[2]


def test_a_breakpoint_without_a_terminal_says_what_it_needs(platoon, write_script):
    done = platoon("launch", "-n", 1, write_script("breakpoint()")).require(1)
    assert "start the job from a terminal with `platoon launch -n 1`" in done.stdout
    platoon("launch", "-n", 1, write_script("breakpoint()"), environment={"PYTHONBREAKPOINT": "0"}).require()


TYPED = """
import sys
import beside
from platoon_base import connect
connect().report({"argv": " ".join(sys.argv), "beside": beside.NAME})
raise SystemExit(connect().global_rank and fail())
"""


def test_a_script_on_standard_input_runs_on_all_workers(platoon, write_script, tmp_path):
    """As for python: its arguments follow the dash, and modules are found in the working directory."""
    write_script("NAME = 'found'", "beside.py")
    text = TYPED.replace("raise SystemExit(connect().global_rank and fail())\n", "print('rank', connect().global_rank)")
    done = platoon("launch", "-n", 2, "--tee", "all", "--log-dir", "logs", "-", "-n", "7", input=text).require()
    assert re.search(r"argv +- -n 7 *\n", done.stdout)
    assert re.search(r"beside +found *\n", done.stdout)
    assert "[1] rank 1\n" in done.stdout
    alone = platoon("run", "-", "a", input="import sys; print(sys.argv, sys.path[0] == __import__('os').getcwd())")
    assert alone.stdout == "['-', 'a'] True\n"


@pytest.mark.parametrize(
    "words",
    [["--", "script.py", "-n", "7"], ["script.py", "--", "-n", "7"], ["-D", "cpu", "--", "script.py", "-D", "x", "y"]],
)
def test_two_dashes_end_the_options(platoon, write_script, words):
    write_script("import sys; print(sys.argv[1:])")
    done = platoon("launch", *(["-n", 1] if "-D" not in words[:1] else []), *words).require()
    behind = words[words.index("script.py") + 1 :]
    assert f"{behind}\n" in done.stdout
