"""Fixtures: jobs of real processes, and the proof that each test leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from by_hand import PREAMBLE, SERVE, at, free_port, terminals, until
from processor_cuda import build_driver
from scripts_here import behind, written
from zygote import zygote_for, zygote_pids

from platoon_base.centers.host import HostCenters
from platoon_base.channels.inproc import InprocHub
from platoon_base.cli.launcher import worker_environment
from platoon_base.controller.outcome import Result
from platoon_base.coordination.coordinator import Coordinator
from platoon_base.coordination.encoding import encode
from platoon_base.coordination.messages import PROTOCOL, Hello
from platoon_base.job import JobOptions, host_job, single_worker
from platoon_base.job.files import segment_prefix
from platoon_base.job.starting import log_file
from platoon_base.shm.job_state import JobState
from platoon_base.shm.segments import SHM_FOLDER, Segment, abandoned
from platoon_base.system.environment import NAMESPACE, STRICT
from platoon_base.worker import Worker
from platoon_base.worker.connection import AdvisoryLock, BackEnds, Connection, Identity
from platoon_base.worker_process.program import Start, python_main

JOB_TIMEOUT_S = 400  # below most tests' own limits, so that the logs are shown

# Each process that runs tests has jobs of its own: it neither sees nor tidies up those of the user or of another run.
os.environ[NAMESPACE] = f"t{os.getpid()}"
JOBS_FOLDER = Path(tempfile.gettempdir(), segment_prefix().strip("/-"))

os.environ[STRICT] = "1"  # a change of a rank that is not possible raises, in all processes

# The scripts of workers may import what the tests share, such as `watching`.
HELPERS = Path(__file__).with_name("helpers")
LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()  # not every kernel does
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(HELPERS)]))


def _put_blocks_on_the_path(checkout):
    """Put the checkout that BLOCKS names on the path: tests and their workers import Blocks from it."""
    folder = Path(checkout).expanduser().absolute()
    if not (folder / "blocks" / "__init__.py").is_file():
        raise pytest.UsageError(
            f"got BLOCKS={checkout}, but there is no {folder}/blocks/__init__.py: name the folder that Blocks was "
            "cloned into"
        )
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])


if os.environ.get("BLOCKS") and importlib.util.find_spec("theano"):  # other Pythons and Keras 3 do without
    _put_blocks_on_the_path(os.environ["BLOCKS"])


def pytest_collection_modifyitems(items):
    """Mark all tests in unit and contract as promises."""
    for item in items:
        if item.path.parent.name in ("unit", "contract"):
            item.add_marker("promise")


_COLLECT_AFTER_BYTES = 200 << 20
_resident = [0]


def pytest_runtest_logfinish():
    """Collect garbage when memory has grown: the collector counts objects, and not what their buffers hold."""
    if psutil.Process().memory_info().rss > _resident[0] + _COLLECT_AFTER_BYTES:
        gc.collect()
        _resident[0] = psutil.Process().memory_info().rss


def pytest_sessionfinish():
    with contextlib.suppress(OSError):  # there is none; or a test has failed, and the report of that is to come
        JOBS_FOLDER.rmdir()


# A shell that starts a test run in the background has its children ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _shared_memory():
    """Name the segments of these tests' jobs that nobody has open, or that this process has mapped."""
    names = [path.name for path in SHM_FOLDER.glob(f"{segment_prefix().strip('/')}*")]
    mapped = Path("/proc/self/maps").read_text() if names else ""
    return {name for name in names if f"/dev/shm/{name}" in mapped or abandoned(name)}


def _job_folders():
    """Name the folders of jobs without shared memory."""
    jobs = JOBS_FOLDER.iterdir() if JOBS_FOLDER.is_dir() else ()
    return {f"folder {job}" for job in jobs if not Path(f"/dev/shm{segment_prefix()}{job.name}-state").exists()}


def _children(pid):
    """Name the processes below one but for zygotes, as the kernel lists them: at once, but maybe not all of several."""
    found = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            for child in map(int, path.read_text().split()):
                found |= {child} | _children(child)
    return found - zygote_pids()


def _processes():
    """Name the processes below this one but for zygotes; to look at all processes of the machine takes 3 ms."""
    if LISTS_CHILDREN and not _children(os.getpid()):
        return set()
    return {f"process {p.pid}" for p in psutil.Process().children(recursive=True) if p.pid not in zygote_pids()}


def _sockets():
    """Name this process's sockets by their descriptors."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this very list
            if os.readlink(path).startswith("socket:"):
                found.add(f"socket {path.name}")
    return found


def _traces():
    """What this process has or may have left: shared memory, job folders, child processes, open sockets."""
    return _shared_memory() | _job_folders() | _processes() | _sockets()


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fail a test that leaves a process, shared memory or a socket behind."""
    before = _traces()
    yield
    # Another test run on this machine may be between a kill and its tidying up; what stays is ours.
    deadline = time.monotonic() + 30
    while (left := _traces() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"left behind: {sorted(left)}"


class Outcome(NamedTuple):
    """How a job of a test ended: its result and the text of each worker's log."""

    result: Result
    logs: list[str]

    @property
    def reported(self):
        """What the workers reported."""
        return self.result.reported

    def require_success(self):
        """Fail with the workers' output unless all of them ended well."""
        assert self.result.status == 0, "\n".join(f"--- rank {i}\n{log}" for i, log in enumerate(self.logs))
        return self


@pytest.fixture
def run_job(tmp_path):
    """Run a script, a path or a short text, on N real worker processes; return the outcome."""

    def run(script, workers=2, *, args=(), environment=None, devices=None, **options):
        script = written(script, tmp_path / "script.py")
        with host_job(workers, JobOptions(**options)) as job:
            places = devices or os.environ.get("PLATOON_TEST_DEVICES", "cpu").split()
            for rank in range(workers):
                device = places[rank % len(places)]
                base = worker_environment(device, workers, {**os.environ, **(environment or {})})
                words = [str(script), str(tmp_path), *args]
                command = [*python_main("platoon_base.worker_process.child"), *words]
                start = job.placed(Start(rank, command, base, log_file(tmp_path, rank)))
                zygote = zygote_for(script.read_text(), start, usual=not environment)
                if zygote is None:
                    job.start(*start)
                else:
                    job.take_over(start, zygote.fork(start, words))
            result = job.serve()
        logs = [log_file(tmp_path, rank).read_text() for rank in range(workers)]
        return Outcome(result, logs)

    return run


@pytest.fixture(scope="session")
def processor_driver(tmp_path_factory):
    """Compile the driver and the NCCL whose devices are the processor; returns their folder, where kernels go too."""
    if not (shutil.which("gcc") and shutil.which("g++")):
        pytest.skip("no C++ compiler: install gcc and g++")
    folder = tmp_path_factory.mktemp("driver")
    build_driver(folder)
    return folder


def _runner(preamble):
    """Make a fixture that runs a script with the names of a preamble; its first argument is the folder of tmp_path."""

    @pytest.fixture
    def run_after(request, run_job):
        more = getattr(request, "param", {})  # variables of the environment
        if "PROCESSOR_NCCL" in more:
            folder = str(request.getfixturevalue("processor_driver"))
            more = {**more, "PROCESSOR_NCCL": folder, "LD_LIBRARY_PATH": folder}

        def run(script, workers=2, environment=None, **options):
            environment = {**(environment or {}), **more}
            return run_job(behind(preamble, script), workers, environment=environment, **options)

        return run

    return run_after


run_keras = _runner("keras_preamble")
run_blocks = _runner("blocks_preamble")
run_lasagne = _runner("lasagne_preamble")
run_function = _runner("function_preamble")


@pytest.fixture
def solo_worker():
    """Make the worker of a job of one, as under plain python."""
    with single_worker(seed=3) as worker:
        yield worker


@pytest.fixture
def job_state_of_one():
    """Make the state of `job_of_one`."""
    return JobState(bytearray(JobState.size_bytes(1)), rows=1, create=True)


@pytest.fixture
def job_of_one(job_state_of_one):
    """Make the only worker left of a job inside this process, with a real center in shared memory."""
    job_state = job_state_of_one
    channel = InprocHub(Coordinator(1), job_state).connect()
    centers = HostCenters(f"{segment_prefix()}test{os.getpid()}-center")
    channel.request(encode(Hello(protocol=PROTOCOL, pid=os.getpid(), host="", device="cpu", rank=0)), 10)
    identity = Identity(rank=0, size=1, local_rank=0, local_size=1, seed=0, device="cpu")
    job_state.note_several()  # so the rule is at work
    nobody_to_keep_out = AdvisoryLock(lambda: True, lambda: None)
    connection = Connection(identity, channel, job_state, nobody_to_keep_out, BackEnds(lambda *_: centers))
    with Worker(connection) as worker:
        yield worker
    Segment.unlink(centers.name)


@pytest.fixture(scope="session")
def opencl():
    """Skip where there is no OpenCL device."""
    code = "import pygpu; pygpu.init('opencl0:0')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if found.returncode:
        why = (found.stderr.splitlines() or ["it ended without a word"])[-1]
        pytest.skip(f"needs pygpu and an OpenCL device: {why}; see docs/compat.md")


class Done(subprocess.CompletedProcess):
    """How a command of a test ended."""

    @property
    def logs(self):
        """The logs of the workers of ``--log-dir logs``, by rank."""
        return [path.read_text(errors="replace") for path in sorted(self.folder.glob("logs/rank*.log"))]

    def require(self, status=0):
        """Fail with the output and the logs of workers unless it has ended with this status."""
        assert self.returncode == status, "\n".join([self.stdout, self.stderr, *self.logs])
        return self


@pytest.fixture
def run_command(tmp_path):
    """Run a command in an empty folder; returns the completed process."""

    def run(*words, environment=None, **options):
        words = [word if isinstance(word, bytes) else str(word) for word in words]
        options = {"cwd": tmp_path, "timeout": JOB_TIMEOUT_S, "capture_output": True, "text": True, **options}
        environment = {**os.environ, "COLUMNS": "200", **(environment or {})}
        done = subprocess.run(words, env=environment, check=False, **options)
        done.__class__, done.folder = Done, tmp_path
        return done

    return run


@pytest.fixture
def platoon(run_command):
    """Run the platoon command in a process of its own, in an empty folder; returns the completed process."""
    return functools.partial(run_command, sys.executable, "-m", "platoon_base")


@pytest.fixture
def start_platoon(tmp_path):
    """Start the platoon command in an empty folder; returns the process, which the end of the test ends."""
    with contextlib.ExitStack() as stack:

        def run(*words, environment=None, **options):
            options = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options}
            command = [sys.executable, "-m", "platoon_base", *map(str, words)]
            process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, **options)
            stack.enter_context(process)  # It closes its pipes.
            stack.callback(process.kill)
            return process

        yield run


@pytest.fixture
def start(tmp_path):
    """Start scripts by hand, each as a process of its own in the same folder."""
    with terminals(tmp_path) as run:
        yield run


@pytest.fixture
def serve(start):
    """Start a controller by hand, and return it with its port once it listens."""

    def run(script=SERVE, *args):
        port = free_port()
        controller = start(script, at(port), *args)
        until(controller, "ready")
        return controller, port

    return run


@pytest.fixture
def work(start):
    """Start a worker by hand: a script, or a short text behind a preamble."""

    def run(script, port, *args, preamble=PREAMBLE):
        return start(script if isinstance(script, Path) else preamble + textwrap.dedent(script), at(port), *args)

    return run


@pytest.fixture
def write_script(tmp_path):
    """Write a script and return its path."""

    def write(text, name="script.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write
