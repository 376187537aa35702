"""How a process ends whose launcher is gone: by itself if it has found out, else interrupted, else killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import run_python
from watching import until

from platoon_base.system.orphan import DATA_SERVER, WORKER
from platoon_base.system.process import readable
from platoon_base.timeouts import timeout
from platoon_base.worker_process.warden import Warden, end_by_warden

pytestmark = pytest.mark.base

HEAD = """
import os, signal, sys, time
from platoon_base.system.orphan import OrphanPolicy, end_with, end_without, found_out, is_watched

patience = OrphanPolicy(notice_s=0.2, own_end_s=60, first=signal.SIGINT, grace_s=60)

def begin():
    end_with(int(sys.argv[1]), patience)
    assert is_watched()
    print("watched", flush=True)

def rest(seconds):
    for _ in range(round(100 * seconds)):
        time.sleep(0.01)
"""


@pytest.fixture
def orphan():
    """Run a script whose launcher is killed once it watches it; return its exit status and its output."""

    def run(text, kill_first=False):
        launcher = subprocess.Popen(["sleep", "600"])
        if kill_first:
            launcher.kill()
            launcher.wait()
        try:
            with subprocess.Popen(
                [sys.executable, "-c", HEAD + text, str(launcher.pid)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            ) as process:  # fmt: skip
                assert process.stdout.readline() == "watched\n"
                launcher.kill()
                launcher.wait()
                output = process.communicate(timeout=120)[0]
            return process.returncode, output
        finally:
            launcher.kill()
            launcher.wait()

    return run


@pytest.mark.parametrize("kill_first", [False, True])
def test_one_that_goes_on_is_interrupted_and_told_why(orphan, kill_first):
    text = "begin()\ntry:\n    rest(60)\nexcept KeyboardInterrupt:\n    print('saved')"
    status, output = orphan(text, kill_first)
    assert status == 0
    assert "the launcher of this job ended without notice, as after kill -9" in output
    assert output.endswith("saved\n")


def test_one_that_minds_no_interrupt_is_killed_with_what_it_has_started(orphan):
    """Its children hold the pipe that is read here to the end."""
    text = (
        "patience = patience._replace(grace_s=0.2)\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nbegin()\nos.fork()\n"
    )
    text += "rest(60)"
    assert orphan(text)[0] == -signal.SIGKILL


# The first process is a shell's; its child is the one whose launcher is gone, and another one is beside that.
OF_A_SHELL = """
import subprocess
sides, told = os.pipe()
pid = os.fork()
if pid == 0:
    if {own_group}:
        os.setpgid(0, 0)
    os.write(told, b".")
    begin()
    rest(60)
    os._exit(0)
os.read(sides, 1)
beside = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: os.setpgid(0, pid if {own_group} else os.getpgid(0)))
status = os.waitpid(pid, 0)[1]
print(status != 0, beside.poll())
beside.kill()
"""


@pytest.mark.parametrize("own_group", [False, True])
def test_what_a_shell_has_started_beside_it_goes_on(orphan, own_group):
    """In the group of the shell, or in one of their own, as the members of a pipe."""
    status, output = orphan(OF_A_SHELL.format(own_group=own_group))
    assert status == 0
    assert output.endswith("True None\n")


def test_one_that_has_found_out_has_time_to_save(orphan, tmp_path):
    """The warden, too, gives it this time, by a file in the folder of the job."""
    text = f"os.environ['PLATOON_JOB'] = {str(tmp_path)!r}\nfound_out()\nbegin()\nrest(1)\nprint(os.getpid())"
    status, output = orphan(text)
    assert (status, [f"{path.name}\n" for path in tmp_path.iterdir()]) == (0, [f"detected-{output}"])


def test_a_watch_may_end(orphan):
    """As that of a worker that has left its job."""
    text = "answers = [True, None]\nend_without(lambda: answers.pop(0), patience)\nprint('watched', flush=True)\n"
    text += "deadline = time.monotonic() + 60\nwhile is_watched() and time.monotonic() < deadline: time.sleep(0.01)\n"
    assert orphan(text + "rest(0.5)") == (0, "")


def test_workers_have_time_and_data_servers_end_at_once():
    assert (WORKER.first, WORKER.grace_s, WORKER.own_end_s) == (signal.SIGINT, None, None)
    assert WORKER.notice_s < 5 < timeout("grace") < timeout("orphan")
    assert (DATA_SERVER.first, DATA_SERVER.notice_s) == (signal.SIGTERM, 0)


# A worker with a child in its process group. Then it cannot run Python any more.
STUCK = "import os, signal, subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); "


@pytest.fixture
def stuck():
    """Start a worker that is stopped, or ends; returns it and a pidfd of its child."""
    started = []

    def start(end="os.kill(os.getpid(), signal.SIGSTOP)"):
        process = subprocess.Popen(
            [sys.executable, "-c", STUCK + end], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process, os.pidfd_open(int(process.stdout.readline()))

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


LAUNCHER = """
import os, signal, sys
from platoon_base.worker_process.warden import Warden
folder, *pids = sys.argv[1:]
guard = Warden(folder, ["/bin/touch", f"{folder}/tidied"], soon_s=0.1)
for pid in map(int, pids):
    guard.watch(pid)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_warden_kills_those_that_cannot_end_themselves_and_later_those_that_may_save(stuck, tmp_path):
    (first, child_of_first), (second, child_of_second) = stuck(), stuck()
    (tmp_path / f"detected-{second.pid}").touch()
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path), str(first.pid), str(second.pid)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert first.wait(200) == -signal.SIGKILL
    assert readable(child_of_first, 200)
    assert second.poll() is None
    assert not (tmp_path / "tidied").exists()
    assert end_by_warden(str(tmp_path))  # as by platoon stop --kill
    assert second.wait(200) == -signal.SIGKILL
    assert readable(child_of_second, 200)
    assert (tmp_path / "tidied").exists()


def test_the_warden_ends_with_a_job_that_has_ended_in_order(stuck, tmp_path):
    guard = Warden(str(tmp_path), ["/bin/touch", str(tmp_path / "tidied")], soon_s=0.0)
    (process, child), (other, _) = stuck(), stuck()
    for each in (process, other):
        guard.watch(each.pid)
    files = Path("/proc", (tmp_path / "warden").read_text(), "fd")

    def watched():
        """Return the number of processes that the warden watches; 0 if it closes a file meanwhile."""
        try:
            return sum(os.readlink(each) == "anon_inode:[pidfd]" for each in files.iterdir())
        except FileNotFoundError:
            return 0

    until(lambda: watched() == 3)  # the launcher, and both workers
    os.killpg(other.pid, signal.SIGKILL)  # one worker ends before the others
    until(lambda: watched() == 2)
    guard.close()
    assert process.poll() is None
    assert not readable(child)
    assert not (tmp_path / "tidied").exists()


# Interrupts that were inherited as ignored or blocked.


SCRIPT = """
import os, signal, time
signal.{how}
from platoon_base.system.process import accept_interrupts
accept_interrupts()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
BOTH = "(signal.SIGINT, signal.SIGTERM)"


BLOCKED = f"pthread_sigmask(signal.SIG_BLOCK, {BOTH})"
IGNORED = f"SIG_IGN; [signal.signal(number, signal.SIG_IGN) for number in {BOTH}]"


@pytest.mark.parametrize("how", [BLOCKED, IGNORED])
def test_both_are_taken(how):
    assert run_python("-c", SCRIPT.format(how=how), status=-signal.SIGTERM).stdout == "interrupted\n"


def test_handlers_of_the_script_stay():
    how = "signal(signal.SIGINT, lambda *_: (print('mine', flush=True), signal.alarm(1)))"
    assert run_python("-c", SCRIPT.format(how=how), status=-signal.SIGALRM).stdout == "mine\n"
