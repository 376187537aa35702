"""How the launcher watches its workers: whatever becomes of a process, the job ends, and no failure is a success."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
from programs import run_python
from scripts_here import script_path
from watching import PATIENCE_S, await_file

from platoon_base.cli.launcher import worker_environment
from platoon_base.controller.processes import WorkerProcesses
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.job import host_job
from platoon_base.job.starting import log_file
from platoon_base.worker_process.program import Program, Start, python_main

pytestmark = [pytest.mark.base, pytest.mark.slow]

FIRST = script_path("watch_first").read_text()


@pytest.fixture
def start(tmp_path):
    """Start a platoon command; what is left of it at the end is killed and collected."""
    started = []

    def run(*words, before=()):
        with open(tmp_path / f"output{len(started)}", "w") as output:
            process = subprocess.Popen(
                [*before, sys.executable, "-m", "platoon_base", *map(str, words)],
                cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def new_namespace():
    """The beginning of a command that runs the rest as the first process of a PID namespace."""
    command = ["unshare", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("needs to make a PID namespace: run the tests as root, with util-linux")
    return command


@pytest.mark.parametrize(("way", "status"), [("leaves", 0), ("dies", 1)])
def test_a_late_joiner_whom_nobody_collects_has_ended(start, write_script, tmp_path, way, status):
    """It stays a zombie of this process until the end of the test."""
    launcher = start("launch", "-n", 1, write_script(FIRST), tmp_path)
    job = await_file(tmp_path / "job", launcher)
    start("join", job, script_path("watch_late"), tmp_path, way)
    assert launcher.wait(PATIENCE_S) == status


@pytest.mark.parametrize(("way", "status"), [("leaves", 0), ("dies", 1)])
def test_a_joiner_from_another_pid_namespace_is_watched_by_its_lock(
    start, write_script, tmp_path, new_namespace, way, status
):
    """There it is process 1, which here is another, and never ends."""
    launcher = start("launch", "-n", 1, write_script(FIRST), tmp_path)
    job = await_file(tmp_path / "job", launcher)
    start("join", job, script_path("watch_late"), tmp_path, way, before=new_namespace)
    assert launcher.wait(PATIENCE_S) == status


def test_a_joiner_from_another_pid_namespace_is_not_signalled_and_keeps_no_launcher(
    start, write_script, tmp_path, new_namespace
):
    launcher = start("launch", "-n", 1, "--grace", 0.2, write_script(FIRST.replace('"late"', '"never"')), tmp_path)
    job = await_file(tmp_path / "job", launcher)
    late = start("join", job, script_path("watch_late"), tmp_path, "stays", before=new_namespace)
    await_file(tmp_path / "late", launcher)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE_S) == 128 + signal.SIGINT
    assert "left running" in (tmp_path / "output0").read_text()
    (tmp_path / "launcher is gone").touch()
    assert late.wait(PATIENCE_S) == 0
    assert (tmp_path / "got").read_text() == "signals []"


FAILS = """
    import os
    from platoon_base import connect
    with connect() as worker:
        worker.barrier()
    os._exit(3 * worker.global_rank)
"""


def test_failures_count_under_a_parent_that_ignores_the_end_of_its_children(platoon, write_script):
    script = write_script(FAILS)
    ignore = "import os, sys; from signal import *; signal(SIGCHLD, SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    words = ["-c", ignore, sys.executable, "-m", "platoon_base", "launch", "-n", 2, script]
    done = run_python(*words, status=3, cwd=script.parent, timeout=PATIENCE_S)
    assert "worker 1: exit status 3" in done.stdout


def test_what_is_asked_in_a_process_of_its_own_counts_under_such_a_parent(tmp_path):
    """`platoon launch -D` asks pygpu, which is broken here, for its devices; `platoon doctor` asks the same way."""
    (tmp_path / "pygpu.py").write_text("raise ImportError('broken')")
    (tmp_path / "script.py").write_text("")
    code = (
        "from signal import *; signal(SIGCHLD, SIG_IGN); from platoon_base.cli import main; "
        "main(['launch', '-D', 'opencl0:0', 'script.py'])"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = run_python("-c", code, status=2, cwd=tmp_path, env=environment, timeout=PATIENCE_S)
    assert "pygpu does not work (ImportError: broken)" in done.stderr


@pytest.fixture
def starts(tmp_path):
    """Two workers of a job that may be forked, or started each by itself."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(FAILS))
    command = [*python_main("platoon_base.worker_process.child"), str(script)]
    environment = worker_environment("cpu", 2, os.environ)
    return [Start(rank, command, environment, log_file(tmp_path, rank)) for rank in range(2)]


@pytest.fixture
def sigchld():
    """Set what becomes of SIGCHLD in this process."""
    before = signal.getsignal(signal.SIGCHLD)
    yield lambda handler: signal.signal(signal.SIGCHLD, handler)
    signal.signal(signal.SIGCHLD, before)


def begin(job, starts, forked):
    if forked:
        job.start_forked(Program(starts[0].command[-1]), [], ["numpy"], starts)
    else:
        for start in starts:
            job.start(*start)


forked_or_not = pytest.mark.parametrize("forked", [False, True], ids=["started", "forked"])


@forked_or_not
def test_failures_count_where_sigchld_is_ignored(starts, sigchld, forked):
    sigchld(signal.SIG_IGN)
    with host_job(2) as job:
        begin(job, starts, forked)
        result = job.serve()
    assert result.status == 3
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN


def test_a_status_that_somebody_else_has_collected_is_no_success(starts, sigchld):
    collected = []

    def collect(*_):
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                collected.append(ended)

    with host_job(2) as job:
        begin(job, starts, forked=False)
        sigchld(collect)
        result = job.serve()
    assert collected
    assert result.status == 1
    assert "other code in the launcher's process has collected it" in str(result.exits[0])


@forked_or_not
def test_a_worker_that_cannot_be_watched_is_ended(starts, monkeypatch, tmp_path, forked):
    """Such as where no file descriptor is left at that moment; the fixture `nothing_left_behind` looks for it."""

    def fail(pid):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", fail)
    with host_job(2) as job:
        if forked:
            begin(job, starts, forked)
            assert job.serve().status == 128 + signal.SIGKILL
        else:
            with pytest.raises(PlatoonError, match="cannot be watched, so it was killed .*Too many open files"):
                begin(job, starts, forked)


def test_a_worker_whose_log_is_a_link_is_not_started(tmp_path):
    """Another user may have put it there, to have a file of this one written to."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "rank0.log").symlink_to("precious")
    start = Start(0, ["echo", "started"], dict(os.environ), tmp_path / "rank0.log")
    (tmp_path / "script.py").write_text("print('started')")
    processes = WorkerProcesses()
    with pytest.raises(ConfigurationError, match="not writing to .*rank0.log"):
        processes.start(*start)
    with pytest.raises(ConfigurationError, match="not writing to .*rank0.log"):
        processes.start_forked(Program(str(tmp_path / "script.py")), [], ["numpy"], [start])
    assert (tmp_path / "precious").read_text() == "precious"
