"""Workers forked from one prepared process must be what `python script.py` would be, and end as it would."""

import contextlib
import importlib.util
import logging
import os
import select
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest
from scripts_here import script_path, written

from platoon_base.cli.launcher import worker_environment, worker_starts
from platoon_base.controller.watch import exit_status
from platoon_base.job import host_job
from platoon_base.job.files import JobFiles
from platoon_base.job.starting import log_file
from platoon_base.worker_process import forkserver
from platoon_base.worker_process.forkserver import modules_to_preload
from platoon_base.worker_process.program import Program, Start, python_main

pytestmark = pytest.mark.base

WAIT_S = 30


class Forked:
    def __init__(self, result, folder, workers):
        self.result = result
        self.status = {ended.rank: ended.status for ended in result.exits}
        self.logs = [log_file(folder, rank).read_text() for rank in range(workers)]


@pytest.fixture
def run_forked(tmp_path):
    def run(program, workers=2, *, args=(), preload=("numpy",), script=None):
        if script is None:
            script = written(program, tmp_path / "script.py")
        environment = worker_environment("cpu", workers, os.environ)
        command = [*python_main("platoon_base.worker_process.child"), str(script), *args]
        starts = [Start(rank, command, environment, log_file(tmp_path, rank)) for rank in range(workers)]
        with host_job(workers) as job:
            job.start_forked(Program(str(script)), args, preload, starts)
            result = job.serve()
        return Forked(result, tmp_path, workers)

    return run


def forked(prints):
    """Whether a worker that printed `"platoon_base.worker_process.forkserver_main" in sys.modules` first was forked."""
    return prints.split()[0] == "True"


def test_the_script_finds_itself_as_under_plain_python(run_forked, run_command, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    script = tmp_path / "sub" / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            '''Documentation.'''
            import sys
            for name in sorted(globals().copy()):
                if name not in ("sys", "__builtins__", "__loader__"):
                    print(name, repr(globals()[name]))
            print(sys.argv, sys.path[0], sys.stdin.read() == "", sys.modules["__main__"].__dict__ is globals())
            print(__builtins__, type(__loader__).__name__, __loader__.path)
            class A: pass
            import pickle
            assert type(pickle.loads(pickle.dumps(A()))) is A
            def f(a: int = 1) -> None: pass
            print(f.__annotations__)  # no future of the launcher's code leaks in
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    words = ["sub/script.py", "--a", "b c"]
    plain = run_command(sys.executable, *words).require()
    outcome = run_forked(None, script="sub/script.py", args=words[1:])
    assert outcome.result.status == 0, outcome.logs
    assert outcome.logs == [plain.stdout] * 2


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "sys.exit()",
        "sys.exit(3)",
        "sys.exit('a reason')",
        "raise ValueError('boom')",
        "raise KeyboardInterrupt",
        "os._exit(7)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.abort()",
        "this is no Python",
    ],
)
def test_the_script_ends_as_under_plain_python(run_forked, run_command, tmp_path, end):
    text = f"""
        import atexit, os, signal, sys
        answer = 42
        atexit.register(lambda: print("at exit", answer))
        {end}
        """
    outcome = run_forked(text)
    plain = run_command(sys.executable, tmp_path / "script.py")
    assert outcome.status == {0: exit_status(plain.returncode), 1: exit_status(plain.returncode)}
    for log in outcome.logs:
        assert plain.stdout in log
        assert plain.stderr.splitlines()[-1:] == [line for line in log.splitlines() if "at exit" not in line][-1:]


def test_each_worker_has_its_own_environment_log_session_and_random_numbers(run_forked):
    outcome = run_forked(script_path("forkserver_each_worker_has_its_own_environment_log"), workers=4)
    assert outcome.result.status == 0, outcome.logs
    lines = [log.splitlines() for log in outcome.logs]
    assert all(map(forked, outcome.logs))
    assert [line[1] for line in lines] == [f"{rank} cpu True" for rank in range(4)]
    assert {line[2] for line in lines} == {f"True {os.getpid()} /dev/null"}
    assert len({line[3].split()[0] for line in lines}) == len({line[3].split()[1] for line in lines}) == 4


def test_nothing_that_made_the_fork_server_end_early_is_left_in_a_worker(run_forked):
    outcome = run_forked(script_path("forkserver_nothing_that_made_the_fork_server_end_early"))
    assert outcome.result.status == 0, outcome.logs
    first, second, *descriptors, watched = outcome.logs[0].splitlines()
    assert first == "0 (0.0, 0.0) SIG_DFL"
    assert second == "True"
    (log,) = (str(ended.log_file) for ended in outcome.result.exits if ended.rank == 0)
    assert descriptors == ["/dev/null", log, log, "anon_inode:[pidfd]"]
    assert watched == str([str(os.getpid())])  # a worker ends after its launcher


@pytest.mark.promise
def test_forked_workers_train_together(run_forked):
    outcome = run_forked(script_path("job_every_update_reaches"), workers=3, preload=("numpy", "platoon_base"))
    assert outcome.result.status == 0, outcome.logs


def test_what_a_worker_started_ends_with_it(run_forked):
    outcome = run_forked(
        """
        import subprocess
        print(subprocess.Popen(["sleep", "1000"]).pid)
        """
    )
    assert outcome.result.status == 0, outcome.logs
    for log in outcome.logs:
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(int(log.split()[0]))
            assert select.select([process], [], [], WAIT_S)[0], "it still runs"
            os.close(process)
        with contextlib.suppress(ChildProcessError):  # it may have become a child of this process
            os.waitpid(int(log.split()[0]), 0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import no_such_module", "exit status 1"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import signal; signal.pause()", "SIGALRM"),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "exit status 1"),
    ],
    ids=["raises", "is killed", "hangs", "starts a thread"],
)
def test_without_the_fork_server_workers_start_by_themselves(run_forked, tmp_path, monkeypatch, caplog, body, reason):
    (tmp_path / "preparation.py").write_text(body)
    if "pause" in body:
        monkeypatch.setattr(forkserver, "timeout", {"preload": 1.0}.get)
    with caplog.at_level(logging.WARNING):
        outcome = run_forked(
            "import sys; print('forked:', 'platoon_base.worker_process.forkserver_main' in sys.modules)",
            preload=("preparation",),
        )
    assert outcome.result.status == 0, outcome.logs
    assert all(log.splitlines()[-1] == "forked: False" for log in outcome.logs)
    (record,) = [record for record in caplog.records if "one by one" in record.message]
    assert reason in record.message


def test_workers_are_forked_as_the_launcher_starts_them(tmp_path, caplog):
    """With the variables that are each worker's own: its device, its error file, its rank in a framework's group."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "print('platoon_base.worker_process.forkserver_main' in sys.modules, "
        "os.environ['KERAS_DISTRIBUTION_PROCESS_ID'])"
    )
    starts = worker_starts(Program(str(script)), [], ["cpu", "cpu"], tmp_path)
    with host_job(2) as job:
        job.start_forked(Program(str(script)), [], ["numpy"], starts)
        assert job.serve().status == 0
    assert [log_file(tmp_path, rank).read_text() for rank in range(2)] == ["True 0\n", "True 1\n"], caplog.text


@pytest.mark.promise
def test_workers_can_be_interrupted_though_the_launcher_ignores_it(run_forked):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ended = run_forked(script_path("forkserver_workers_can_be_interrupted"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.logs == ["True\ninterrupted\n"] * 2


def test_workers_with_different_settings_are_not_forked(tmp_path, caplog):
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ['OMP_NUM_THREADS'])")
    command = [*python_main("platoon_base.worker_process.child"), str(script)]
    starts = [
        Start(rank, command, {**os.environ, "OMP_NUM_THREADS": str(rank + 1)}, log_file(tmp_path, rank))
        for rank in range(2)
    ]
    with host_job(2) as job:
        job.start_forked(Program(str(script)), [], ["numpy"], starts)
        assert job.serve().status == 0
    assert [log_file(tmp_path, rank).read_text() for rank in range(2)] == ["1\n", "2\n"]
    assert "different OMP_NUM_THREADS" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_ending_the_launcher_ends_a_fork_server_that_still_imports(tmp_path, number):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "script.py").write_text("open('ran', 'w')")
    (tmp_path / "preparation.py").write_text(
        f"import os, signal\nwith open({str(fifo)!r}, 'w') as file: file.write(str(os.getpid()))\nsignal.pause()"
    )
    launcher = script_path("forkserver_ending_the_launcher_ends_a_fork_server")
    with subprocess.Popen([sys.executable, launcher], cwd=tmp_path) as process:
        server = os.pidfd_open(int(fifo.read_text()))
        process.send_signal(number)
        ended, _, _ = select.select([server], [], [], WAIT_S)
        os.close(server)
        assert ended, "the fork server is still there"
    assert exit_status(process.returncode) == 128 + number
    assert not (tmp_path / "ran").exists()
    if number == signal.SIGKILL:  # nobody was left to tidy up
        JobFiles.read((tmp_path / "folder").read_text()).remove()


@pytest.mark.slow
@pytest.mark.parametrize("imports_for_ever", [True, pytest.param(False, marks=pytest.mark.product)])
def test_a_fork_server_that_does_not_tell_its_end_keeps_no_launcher(tmp_path, imports_for_ever):
    """What it has started, in a session of its own, keeps the pipe open by which it tells."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "script.py").write_text("import time; time.sleep(600)")
    (tmp_path / "preparation.py").write_text(
        "import os, signal\n"
        f"def end(*_): os._exit(open({str(tmp_path / 'late')!r}, 'w').close() or 0)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    signal.signal(signal.SIGALRM, end)\n"
        "    signal.setitimer(signal.ITIMER_REAL, 30)\n"
        f"    with open({str(fifo)!r}, 'w') as file: file.write(str(os.getpid()))\n"
        "    signal.pause()\n"
        f"if {imports_for_ever}: signal.pause()\n"
    )
    command = [*python_main("platoon_base.worker_process.child"), str(tmp_path / "script.py")]
    start = Start(0, command, dict(os.environ), log_file(tmp_path, 0))
    with host_job(1) as job:
        job.start_forked(Program(str(tmp_path / "script.py")), [], ["preparation"], [start])
        stray = int(fifo.read_text())
    assert not (tmp_path / "late").exists(), "it was waited for"
    os.kill(stray, signal.SIGKILL)
    psutil.wait_procs(psutil.Process().children(), WAIT_S)  # the worker too, if it was forked


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import numpy\nimport theano.tensor as T\nimport json", ["numpy", "theano.tensor"]),
        ("from lasagne.layers import DenseLayer\nimport numpy", ["lasagne.layers", "numpy"]),
        ("import platoon_plugins.lasagne", ["platoon_plugins.lasagne"]),
        ("from blocks.bricks import MLP\nimport fuel.streams", ["blocks.bricks", "fuel.streams"]),
        ("from platoon_plugins.blocks import EASGD\nimport blocks", ["platoon_plugins.blocks", "blocks"]),
        ("import fuel", []),
        ("from blocks_extras import bricks\nimport theano", ["theano"]),
        ("try:\n    import theano\nexcept ImportError:\n    pass", ["theano"]),
        ("if True:\n    import theano", ["theano"]),
        ("def f():\n    import theano", []),
        ("import keras\nimport theano", ["theano"]),
        ("import os, theano\nprint(os.environ['A'], os.environ.get('B'), 'C' in os.environ)", ["theano"]),
        ("import os\nos.environ['THEANO_FLAGS'] = 'floatX=float32'\nimport theano", []),
        ("import os\nchange(os.environ)\nimport theano", []),
        ("import os as o\no.environ['A'] = 'b'\nimport theano", []),
        ("from os import environ\nimport theano", []),
        ("from os import path\nimport theano", ["theano"]),
        ("from os import *\nimport theano", []),
        ("import sys\nsys.path.insert(0, 'x')\nimport theano", []),
        ("import model", ["theano"]),
        ("from package import part", ["lasagne"]),
        ("import settings\nimport theano", []),
        ("import theano\nimport own.theano", ["theano"]),
        ("import numpy\nimport theano this is no Python", []),
    ],
)
def test_only_what_is_safe_and_worth_it_is_imported_early(tmp_path, text, modules):
    (tmp_path / "model.py").write_text("import theano")
    (tmp_path / "settings.py").write_text("import os\nos.putenv('A', 'b')")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text("from . import other")
    (tmp_path / "package" / "other.py").write_text("import lasagne\nimport package.part")
    script = tmp_path / "script.py"
    script.write_text(text)
    assert modules_to_preload(Program(str(script))) == modules


@pytest.mark.theano
def test_workers_forked_from_a_process_with_theano_end_where_mpi4py_is_installed(platoon):
    """Theano would start MPI before the fork; the forked workers then hung in MPI_Finalize."""
    for name, remedy in (("theano", "make setup"), ("mpi4py", "apt-get install libopenmpi-dev, then make setup")):
        if importlib.util.find_spec(name) is None:  # importing mpi4py here would start MPI in the test process
            pytest.skip(f"needs {name}: {remedy}")
    script = script_path("forkserver_workers_forked_from_a_process_with_theano")
    platoon("launch", "-n", 2, script).require()
