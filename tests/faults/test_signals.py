"""Signals to the launcher and to single workers, in the middle of what workers do; none leaves anything behind.

The fixture `nothing_left_behind` looks for what is left. Workers tell by files what they are in the middle of.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from scripts_here import behind, script_path, written
from watching import PATIENCE_S, await_file, until

from platoon_base.job.files import JobFiles

pytestmark = [pytest.mark.base, pytest.mark.slow]

JOIN = """
worker = connect()
rank, x = worker.global_rank, np.zeros(100_000)
"""


@pytest.fixture
def launch(tmp_path):
    """Start the launcher on a script; it is killed at the end if it still runs."""
    started = []
    # Under nohup a test run ignores hangups, and so would what it starts.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def start(script, workers=3, *, args=(), shell=None, options=()):
        command = [sys.executable, "-m", "platoon_base", "launch", "-n", str(workers), "--log-dir", "logs", *options]
        command += [str(written(behind("job_preamble", script), tmp_path / "script.py")), str(tmp_path), *args]
        if shell is not None:
            command = ["sh", "-c", f'{shell}; exec "$@"', "sh", *command]
        # Output goes to a file: a pipe would stay open as long as any worker lives.
        with open(tmp_path / "output", "w") as output:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
        started.append(process)
        return process

    yield start
    signal.signal(signal.SIGHUP, before)
    for process in started:
        process.terminate()  # it ends the workers, should a test have failed
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


@pytest.fixture
def output_of(tmp_path):
    def read(name="output"):
        return (tmp_path / name).read_text()

    return read


def await_all(folder, name, workers, launcher=None):
    return [await_file(folder / f"{name}{rank}", launcher) for rank in range(workers)]


# To the launcher.

MIDDLES = {
    "synchronizations": """
worker.init_shared_params([x], ASGD())
for step in range(10**9):
    x += 1
    worker.sync_params()
    if step == 20:
        tell(f"ready{rank}")
""",
    "waits of a barrier": """
if rank == 0:
    until(lambda: waits_in("barrier barrier", 1, 2))
    for other in range(3):
        tell(f"ready{other}")
    rest()
worker.barrier()  # its departure may release the others before their own signal comes
rest()
""",
    "waits of an all-reduce": """
worker.all_reduce(x)
tell(f"ready{rank}")
if rank == 0:
    rest()
worker.all_reduce(x)
""",
}


@pytest.mark.parametrize(
    ("middle", "number"),
    [
        ("synchronizations", signal.SIGINT),
        ("waits of an all-reduce", signal.SIGINT),
        pytest.param("synchronizations", signal.SIGTERM, marks=pytest.mark.promise),
        ("waits of a barrier", signal.SIGTERM),
        ("waits of an all-reduce", signal.SIGHUP),
    ],
)
def test_a_signal_to_the_launcher_ends_workers_in_the_middle_of(launch, output_of, tmp_path, middle, number):
    launcher = launch(JOIN + MIDDLES[middle])
    await_all(tmp_path, "ready", 3, launcher)
    launcher.send_signal(number)
    assert launcher.wait(PATIENCE_S) == 128 + number
    assert number.name in output_of()
    for rank in range(3):
        log = output_of(f"logs/rank{rank}.log")
        errors = [line for line in log.splitlines() if "Error" in line and not line.startswith(" ")]
        # A worker learns of the end by Ctrl-C, or by another that has gone already.
        assert all("WorkerLostError" in line for line in errors), log
        assert "KeyboardInterrupt" in log or errors, f"rank {rank}: {log}\n{output_of()}"


def test_a_hangup_that_is_ignored_is_no_reason_to_end(launch, output_of, tmp_path):
    """As under nohup: neither the launcher nor a worker heeds it."""
    launcher = launch(script_path("signals_a_hangup_that_is_ignored_is_no_reason_to_end"), shell="trap '' HUP")
    pids = map(int, await_all(tmp_path, "ready", 3, launcher))
    for pid in (launcher.pid, *pids):
        os.kill(pid, signal.SIGHUP)
    (tmp_path / "go on").touch()
    assert launcher.wait(PATIENCE_S) == 0, output_of()


@pytest.mark.promise
def test_workers_of_a_launcher_in_the_background_have_time_to_save(launch, output_of, tmp_path):
    """A shell without job control starts it with SIGINT ignored."""
    launcher = launch(script_path("signals_a_worker_that_is_interrupted_saves"), 2, shell="trap '' INT")
    await_all(tmp_path, "ready", 2, launcher)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert all((tmp_path / f"saved{rank}").exists() for rank in range(2)), output_of()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.promise), signal.SIGXCPU])
def test_a_script_that_handles_a_signal_to_the_launcher_gets_it(launch, output_of, tmp_path, number):
    """One that nobody handles is not lost without a word; one that asks for the end still ends the job."""
    launcher = launch(script_path("signals_handlers_of_the_script"), 2)
    await_all(tmp_path, "ready", 2, launcher)
    launcher.send_signal(signal.SIGUSR2)
    until(
        lambda: "SIGUSR2 is passed to workers that handle it, but not to ranks 0, 1 without" in unwrapped(output_of())
    )
    launcher.send_signal(signal.SIGUSR1)
    until(lambda: list(tmp_path.glob("SIGUSR1 0 *")))
    launcher.send_signal(number)
    assert launcher.wait(PATIENCE_S) == 128 + number, output_of()
    assert "SIGUSR1 is passed to workers that handle it, but not to rank 1 without a handler" in unwrapped(output_of())
    for rank in range(2):
        assert (tmp_path / f"saved{rank} True").exists(), output_of()
        assert len(list(tmp_path.glob(f"{number.name} {rank} *"))) == 1
    assert not list(tmp_path.glob("SIGUSR1 1 *"))


def unwrapped(text):
    return " ".join(text.split())


def test_an_interrupt_is_not_lost_in_a_finalizer(launch, output_of, tmp_path):
    launcher = launch(script_path("signals_an_interrupt_in_a_finalizer"), 2, options=["--grace", "20"])
    await_all(tmp_path, "finalizing", 2, launcher)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE_S) == 128 + signal.SIGINT
    assert all((tmp_path / f"saved{rank}").exists() for rank in range(2)), output_of()
    assert "SIGKILL" not in output_of()


@pytest.mark.promise
def test_a_second_ctrl_c_ends_workers_that_would_take_their_time(launch, output_of, tmp_path):
    launcher = launch(script_path("signals_a_second_ctrl_c_ends_workers_that_would_take"), options=["--grace", "600"])
    await_all(tmp_path, "ready", 3, launcher)
    launcher.send_signal(signal.SIGINT)
    await_all(tmp_path, "SIGINT", 3)
    with contextlib.suppress(ProcessLookupError):
        launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE_S) == 128 + signal.SIGINT
    assert "SIGKILL" in output_of()


def test_however_often_ctrl_c_is_pressed_the_summary_and_the_status_are_right(launch, output_of, tmp_path):
    launcher = launch(script_path("signals_however_often_ctrl_c_is_pressed_the_summary"))
    await_all(tmp_path, "ready", 3, launcher)
    deadline = time.monotonic() + PATIENCE_S
    while launcher.poll() is None and time.monotonic() < deadline:
        launcher.send_signal(signal.SIGINT)
        time.sleep(1e-3)
    assert launcher.poll() == 128 + signal.SIGINT
    assert re.search("stopped_by +SIGINT", output_of()), output_of()
    assert "Aborted" not in output_of()


# To one worker.

ONE = {
    "a synchronization": """
while True:
    worker.sync_params()
""",
    "a barrier": """
while True:
    worker.barrier("never")
""",
    "a computation": """
while True:
    pass
""",
}


@pytest.mark.parametrize(
    ("middle", "number", "status"),
    [
        pytest.param("a synchronization", signal.SIGTERM, 143, marks=pytest.mark.promise),
        ("a barrier", signal.SIGINT, 130),
        ("a computation", signal.SIGINT, 130),
        ("a computation", signal.SIGTERM, 143),
    ],
)
def test_a_signal_to_one_worker_ends_that_one_and_the_others_go_on(launch, output_of, tmp_path, middle, number, status):
    launcher = launch(
        JOIN
        + f"""
worker.init_shared_params([x], ASGD())
pids = exchange_pids(worker)
if rank == 1:
    tell("ready")
    {ONE[middle].strip().replace(chr(10), chr(10) + "    ")}
until((FOLDER / "ready").exists)
if rank == 0:
    if {middle == "a barrier"}:
        until(lambda: waits_in("barrier never", 1))
    os.kill(pids[1], {int(number)})
for _ in range(20):
    x += 1
    worker.sync_params()
until(lambda: ending(1))
for _ in range(20):
    x += 1
    worker.sync_params()
assert worker.advanced.meet("trained") == [0, 2]
assert not worker.should_stop
worker.copy_to_local()
assert (x == 80).all(), np.unique(x)
tell(f"done{{rank}}")
"""
    )
    assert launcher.wait(PATIENCE_S) == status, output_of()
    assert (tmp_path / "done0").exists()
    assert (tmp_path / "done2").exists()
    assert f"killed by {number.name}" in output_of()
    assert ("KeyboardInterrupt" in output_of("logs/rank1.log")) == (number == signal.SIGINT)
    for rank in (0, 2):
        assert "Traceback" not in output_of(f"logs/rank{rank}.log")


def test_a_script_that_catches_ctrl_c_may_go_on_and_leave_as_it_likes(launch, output_of, tmp_path):
    """The wait that was cut short is over; everything else works, also a wait of another kind."""
    launcher = launch(script_path("signals_a_script_that_catches_ctrl_c_may_go"))
    assert launcher.wait(PATIENCE_S) == 0, output_of() + output_of("logs/rank0.log") + output_of("logs/rank1.log")


# The launcher is killed, and can tidy up nothing.

ORPHANS = {
    "in a barrier": (
        """
if rank == 0:
    until(lambda: waits_in("barrier barrier", 1, 2))
    tell("now0")
    while not worker.should_stop:
        pass
    assert "controller has ended" in worker.stop_reason
else:
    tell(f"now{rank}")
    worker.barrier()
""",
        ["", "the controller of this job has ended", "the controller of this job has ended"],
    ),
    "in synchronizations until should_stop": (
        """
worker.init_shared_params([x], ASGD())
worker.barrier()
tell(f"now{rank}")
while not worker.should_stop:
    x += 1
    try:
        worker.sync_params()
    except WorkerLostError:
        assert worker.should_stop
""",
        ["", "", ""],
    ),
    "in all-reduces alone": (
        # They need no controller for it, but look now and then whether it is there.
        """
worker.all_reduce(x)
tell(f"now{rank}")
if rank == 0:
    until(lambda: not controller_lives())
while True:
    worker.all_reduce(x)
""",
        ["controller of this job has ended|rank . (is lost|has left)"] * 3,
    ),
    "in no call": (
        """
try:
    tell(f"now{rank}")
    while True:
        pass
except KeyboardInterrupt:
    tell(f"interrupted{rank}")
""",
        ["", "", ""],
    ),
    "before they join": ("", ["controller of this job has ended|PLATOON_JOB"] * 3),
}

TELL_THE_END = """
own_rank = os.environ["PLATOON_RANK"]
def at_the_end(kind, error, trace):
    (FOLDER / f"error{own_rank}").write_text(f"{kind.__name__}: {error}")
sys.excepthook = at_the_end
(FOLDER / "job").write_text(os.environ["PLATOON_JOB"])
tell(f"pid{own_rank}")
if "before they join" in sys.argv:
    until((FOLDER / "killed").exists)
"""


@pytest.mark.parametrize(
    "where", [pytest.param("in no call", marks=pytest.mark.promise), *sorted(ORPHANS.keys() - {"in no call"})]
)
def test_workers_of_a_launcher_that_is_killed_end_by_themselves(launch, tmp_path, where):
    """With the reason, or well if their script does so; the last one out leaves no shared memory."""
    text, reasons = ORPHANS[where]
    launcher = launch(TELL_THE_END + JOIN + text, args=[where])
    pidfds = [os.pidfd_open(int(pid)) for pid in await_all(tmp_path, "pid", 3, launcher)]
    files = JobFiles.read((tmp_path / "job").read_text())
    try:
        for rank in range(3 if text else 0):
            await_file(tmp_path / f"now{rank}", launcher)
        launcher.kill()
        assert launcher.wait(PATIENCE_S) == -signal.SIGKILL
        (tmp_path / "killed").touch()
        for rank, pidfd in enumerate(pidfds):
            ended, _, _ = select.select([pidfd], [], [], PATIENCE_S)
            assert ended, f"rank {rank} goes on without its launcher"
        named = [f"/dev/shm{name}" for name in (files.job_state, files.center, files.collective)]
        assert [path for path in (files.folder, *named) if os.path.exists(path)] == [], "left behind"
    finally:
        for pidfd in pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        files.remove()
    for rank, reason in enumerate(reasons):
        path = tmp_path / f"error{rank}"
        error = path.read_text() if path.exists() else ""
        if not reason:
            assert error == "", (rank, error)
        elif not error.startswith("KeyboardInterrupt"):  # else it took its time to find out
            assert re.search(reason, error), (rank, error)
            assert error.startswith(("WorkerLostError", "ConfigurationError")), error


def test_a_late_joiner_that_makes_no_call_ends_after_the_launcher(launch, output_of, tmp_path):
    launcher = launch(script_path("signals_a_late_joiner_that_makes_no_call_ends"), 1)
    await_file(tmp_path / "ready", launcher)
    files = JobFiles.read((tmp_path / "job").read_text())
    script = script_path("signals_a_late_joiner_that_makes_no_call_ends_2")
    command = [sys.executable, "-m", "platoon_base", "join", files.job, str(script), str(tmp_path)]
    with open(tmp_path / "joiner", "w") as output, subprocess.Popen(command, stderr=output) as joiner:
        try:
            await_file(tmp_path / "joined", joiner)
            launcher.kill()
            launcher.wait()
            (tmp_path / "go on").touch()  # the launched one ends by itself
            assert joiner.wait(PATIENCE_S) == 0
        finally:
            joiner.kill()
    assert (tmp_path / "interrupted").exists()
    assert "the launcher of this job ended without notice" in output_of("joiner")
    until(lambda: not files.alive)
    files.remove()
