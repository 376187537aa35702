"""Mini-batches from a server and from processes that load ahead, on real workers that are killed, stopped or slow."""

import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import psutil
import pytest
from scripts_here import script_path
from watching import await_file, until

from platoon_base.data import BatchReader, BatchServer, load_ahead
from platoon_base.errors import CollectiveTimeoutError, ConfigurationError, WorkerLostError
from platoon_base.job.files import JobFiles
from platoon_base.system.process import readable

pytestmark = pytest.mark.base

PREAMBLE = """
import json, os, pathlib, sys, time
import numpy as np
from platoon_base.data import BatchReader, BatchServer, load_ahead
address, rank, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])

def tell(name, value):
    unfinished = folder / f"{name}.tmp"
    unfinished.write_text(json.dumps(value))
    unfinished.rename(folder / name)
"""


class Worker:
    def __init__(self, text, address, rank, folder):
        words = [sys.executable, "-c", PREAMBLE + textwrap.dedent(text), address, str(rank), str(folder)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def output(self):
        return self.process.communicate(timeout=120)[0]


@pytest.fixture
def address(tmp_path):
    return str(tmp_path / "batches")


@pytest.fixture
def start(address, tmp_path):
    started = []

    def start(text, rank=0):
        started.append(Worker(text, address, rank, tmp_path))
        return started[-1]

    yield start
    for worker in started:
        worker.process.kill()
        worker.process.wait()
        worker.process.stdout.close()


READ = """
with BatchReader(address, rank=rank) as reader:
    for epoch in range(2):
        print([int(k) for x, k in reader if (x == k).all()], flush=True)
"""


def batches(count, rows=1000):
    return ((np.full((rows, 10), k), np.array(k)) for k in range(count))


def test_turns_give_each_worker_the_same_batches_in_each_run(address, start):
    workers = [start(READ, rank) for rank in range(3)]
    with BatchServer(address, readers=3) as server:
        assert [server.serve(batches(8), "turns"), server.serve(batches(4), "turns")] == [8, 4]
    assert [worker.output().split("\n")[:2] for worker in workers] == [
        ["[0, 3, 6]", "[1]"],  # the 9th batch is the first of the second epoch, and the third worker's
        ["[1, 4, 7]", "[2]"],
        ["[2, 5]", "[0, 3]"],
    ]


HOLD = """
reader = BatchReader(address, rank=rank)
kept = [reader.receive(), reader.receive()]
tell("kept", [int(x[1]) for x in kept])
time.sleep(600)
"""


def test_a_worker_that_is_killed_gives_its_slots_back_and_what_it_had_not_taken_to_others(address, start, tmp_path):
    victim = start(HOLD)
    with BatchServer(address, readers=1) as server:
        for batch in batches(4):
            server.send(batch)
        until(lambda: (tmp_path / "kept").exists())
        assert await_file(tmp_path / "kept", victim.process) == "[0, 1]"
        victim.process.kill()
        heir = start(READ)  # as if it had been started again
        server.serve((x, k + 4) for x, k in ((np.full((1000, 10), k + 4), k) for k in range(6)))
        server.end()
        # The first two died with the worker: the second was taken too, but nobody was told before its end.
        assert heir.output().split("\n")[0] in (str(list(range(1, 10))), str(list(range(2, 10))))
        assert server.lost in (1, 2)
        assert server.memory_bytes <= 7 * 86_016


SERVE = """
with BatchServer(address, readers=1) as server:
    for k in range(3):
        server.send(np.full(1000, k))
    tell("sent", os.getpid())
    time.sleep(600)
"""


def test_a_server_that_is_killed_is_told_at_once_after_what_it_had_sent(address, start, tmp_path):
    server = start(SERVE)
    with BatchReader(address, timeout_s=60) as reader:
        await_file(tmp_path / "sent", server.process)
        server.process.kill()
        assert [int(reader.receive()[0]) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(WorkerLostError, match=rf"\(pid {server.process.pid}\) ended before the end of the data"):
            reader.receive()


SERVER = """
import os, sys, time
import numpy as np
from platoon_base.data import BatchServer

assert "PLATOON_RANK" not in os.environ
with BatchServer() as server:
    server.serve((np.full(4, k) for k in range(int(sys.argv[1]))), "turns")
print("all sent", flush=True)
"""


@pytest.mark.promise
def test_a_server_is_launched_beside_the_workers(platoon, write_script, tmp_path):
    write_script(SERVER, "server.py")
    script = script_path("batches_a_server_is_launched_beside_the_workers")
    done = platoon("launch", "-n2", "-D", "cpu", "--log-dir", "logs", "--data-server", "server.py 7", script).require()
    assert [line in log for line, log in zip(("got [0, 2, 4, 6]", "got [1, 3, 5]"), done.logs)] == [True, True]
    assert "all sent" in (tmp_path / "logs" / "data_server.log").read_text()


def test_a_launched_server_that_fails_ends_the_job_and_one_that_hangs_ends_with_it(platoon, write_script, tmp_path):
    read = "from platoon_base.data import BatchReader\nprint(sum(int(x[0]) for x in BatchReader()))"
    script = write_script(read)
    write_script(SERVER.replace("np.full(4, k)", "np.full(4, k // (3 - k))"), "server.py")
    words = ["launch", "-n1", "-D", "cpu", "--log-dir", tmp_path / "logs", "--data-server"]
    done = platoon(*words, "server.py 7", script).require(1)
    log = (tmp_path / "logs" / "rank0.log").read_text()
    assert "WorkerLostError" in log
    assert "ZeroDivisionError: integer division or modulo by zero" in log
    assert "the data server ended (exit status 1" in done.stdout + done.stderr
    write_script(SERVER.replace("print(", "time.sleep(600); print("), "server.py")
    done = platoon(*words, "server.py 4", script).require()
    assert "6\n" in (tmp_path / "logs" / "rank0.log").read_text()


@pytest.mark.parametrize(
    ("value", "why"), [("no_such.py", "there is no script"), ("", "got an empty"), ("'a", "quote is not closed")]
)
def test_a_data_server_that_cannot_be_is_refused(platoon, write_script, value, why):
    done = platoon("launch", "-n1", "-D", "cpu", "--data-server", value, write_script("raise SystemExit(3)")).require(2)
    assert why in done.stdout + done.stderr


# Loading ahead.


def drawn(count=3):
    for k in range(count):
        yield {"k": np.full(5, k), "noise": np.random.rand(2)}


def test_batches_that_were_loaded_ahead_are_those_of_a_plain_loop():
    rows = np.arange(1000.0).reshape(100, 10)

    def minibatches():
        for start in range(0, 100, 8):
            yield rows[start : start + 8], rows[start : start + 8].sum(axis=1)

    loader = load_ahead(minibatches)
    for _ in range(2):
        count = 0
        for (x, y), (a, b) in zip(loader, minibatches()):
            np.testing.assert_array_equal(x, a)
            np.testing.assert_array_equal(y, b)
            count += 1
        assert count == 13
    assert [x.tolist() for x in load_ahead([np.arange(2), np.arange(3)])] == [[0, 1], [0, 1, 2]]
    assert len(list(load_ahead(minibatches()))) == 13


def test_a_generator_can_be_read_once():
    loader = load_ahead(drawn())
    assert len(list(loader)) == 3
    with pytest.raises(ConfigurationError, match="load_ahead\\(lambda"):
        list(loader)


def test_a_seed_gives_the_same_noise_and_each_loop_has_its_own():
    with_seed = [[batch["noise"].tolist() for batch in load_ahead(drawn, seed=[5, 1])] for _ in range(2)]
    words = np.random.SeedSequence([5, 1]).generate_state(4)
    expected = np.random.RandomState(words).rand(3, 2).tolist()
    assert with_seed == [expected] * 2
    without = [tuple(batch["noise"].tolist()) for _ in range(3) for batch in load_ahead(drawn)]
    assert len(set(without)) == 9


def test_workers_load_with_seeds_of_their_own_that_are_the_same_in_each_run(run_job):
    script = script_path("batches_workers_load_with_seeds_of_their_own")
    runs = [run_job(script, seed=seed).require_success().reported for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    texts = [runs[run][f"noise {rank}"] for run in (0, 2) for rank in (0, 1)]
    assert len(set(texts)) == 4


def test_an_error_of_the_batches_is_raised_in_the_loop():
    def failing():
        yield np.zeros(1)
        raise KeyError("no such image")

    got = []
    with pytest.raises(WorkerLostError, match=r"KeyError: 'no such image'\n(.*\n)*.*in failing"):
        got.extend(load_ahead(failing))


def test_a_loader_that_is_killed_is_told():
    def killed():
        yield np.zeros(1)
        os.kill(os.getpid(), signal.SIGKILL)

    got = iter(load_ahead(killed))
    assert next(got).tolist() == [0]
    with pytest.raises(WorkerLostError, match=r"killed by signal 9 \(SIGKILL\)"):
        next(got)


def test_a_loader_that_is_slow_is_told():
    def slow():
        signal.pause()
        yield np.zeros(1)

    with pytest.raises(CollectiveTimeoutError, match=r"the process that loads ahead \(pid \d+\) is alive"):
        next(iter(load_ahead(slow, timeout_s=0.3)))


def test_a_loop_that_is_left_early_ends_its_process(tmp_path):
    def endless():
        (tmp_path / "pid").write_text(str(os.getpid()))
        while True:
            yield np.zeros(100_000)

    for batch in load_ahead(endless):
        kept = batch
        break
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert not kept.any()


def test_a_loader_ends_when_its_worker_is_killed(start, tmp_path):
    worker = start("""
def endless():
    tell("pid", os.getpid())
    while True:
        yield np.zeros(1000)

for x in load_ahead(endless):
    tell("reading", True)
""")
    await_file(tmp_path / "reading", worker.process)
    loader = psutil.Process(int(await_file(tmp_path / "pid")))
    worker.process.kill()
    until(lambda: not loader.is_running() or loader.status() == psutil.STATUS_ZOMBIE)


def test_a_loader_can_be_a_new_python(run_command):
    run = run_command(sys.executable, script_path("batches_spawned"))
    assert run.stdout == '[[0, 0], [1, 1], [2, 2]]\nor start_method="fork"\n', run.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"batches": 5}, "got int: pass an iterable"),
        ({"batches": [], "start_method": "forkserver"}, "must be one of fork, spawn"),
        ({"batches": [], "ahead": 0}, "may have 1 to 64"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, why):
    with pytest.raises(ConfigurationError, match=why):
        list(load_ahead(**arguments))


# The ends of things: of a loop, of the data, of a server, of the room for messages.


def test_a_loop_that_is_over_stays_over():
    batches = iter(load_ahead([np.full(1, number) for number in range(3)]))
    chunks = []
    while chunk := list(itertools.islice(batches, 2)):
        chunks.append([int(x[0]) for x in chunk])
    assert chunks == [[0, 1], [2]]
    assert list(batches) == []


def test_a_loop_that_was_closed_or_has_failed_is_over():
    closed = iter(load_ahead([np.zeros(1)] * 3))
    next(closed)
    closed.close()
    assert list(closed) == []
    failed = iter(load_ahead(lambda: [1 // 0]))
    with pytest.raises(WorkerLostError, match="ZeroDivisionError"):
        next(failed)
    assert list(failed) == []


def test_a_reader_with_no_room_for_messages_is_waited_for(tmp_path):
    """The description of 200 named arrays takes a tenth of a socket's buffer."""
    with BatchServer(str(tmp_path / "batches")) as server, BatchReader(server.address, ahead=60) as reader:
        many = ({f"array {name}": np.full(2, number) for name in range(200)} for number in range(200))
        with pytest.raises(CollectiveTimeoutError, match="had room"):
            server.serve(many, timeout_s=0.2)
        sent = server.sent
        assert 2 < sent <= 60
        assert [int(reader.receive()["array 7"][0]) for _ in range(sent)] == list(range(sent))
        server.send(np.full(1, sent), timeout_s=5)
        assert reader.receive()[0] == sent
        server.end()
        assert reader.receive() is None
        assert server.lost == 0


@pytest.mark.parametrize(
    ("code", "how", "warns"),
    [
        ("import no_such_module", "failed with ModuleNotFoundError: No module named 'no_such_module'", True),
        pytest.param(
            "import os; os.kill(os.getpid(), 9)",
            "ended (killed by SIGKILL, by a user or by the kernel",
            True,
            marks=pytest.mark.promise,
        ),
        ("", "ended (exit status 0", False),
    ],
)
def test_a_launched_server_that_ends_before_it_listens_is_reported_at_once(
    platoon, write_script, tmp_path, code, how, warns
):
    write_script(code, "server.py")
    script = write_script("from platoon_base.data import BatchReader\nnext(iter(BatchReader(timeout_s=120)))")
    logs = tmp_path / "logs"
    done = platoon("launch", "-n1", "-D", "cpu", "--log-dir", logs, "--data-server", "server.py", script).require(1)
    log = (logs / "rank0.log").read_text()
    assert f"the data server {how}" in log
    assert "WorkerLostError: no batch server listens at " in log
    found = re.search(r"the data server ended \([^)]*\):", done.stdout + done.stderr)  # "); see" is the worker's
    assert (found is not None) == warns


@pytest.mark.promise
def test_a_data_server_ends_with_a_launcher_that_is_killed_and_so_do_its_children(write_script, tmp_path):
    rest = "open(f'new {name}', 'w').write(str(os.getpid()))\nos.rename(f'new {name}', name)\ntime.sleep(600)"
    write_script(f"import os, time\nname = 'server' if os.fork() else 'child'\n{rest}", "server.py")
    script = write_script(
        f"import os, time\nname = 'worker'\nopen('job', 'w').write(os.environ['PLATOON_JOB'])\n{rest}"
    )
    command = [sys.executable, "-m", "platoon_base", "launch", "-n1", "-D", "cpu", "--log-dir", "logs"]
    with subprocess.Popen([*command, "--data-server", "server.py", script], cwd=tmp_path) as launcher:
        names = ("server", "child", "worker")
        pidfds = [os.pidfd_open(int(await_file(tmp_path / name, launcher))) for name in names]
        launcher.kill()
    for pidfd in pidfds:
        assert readable(pidfd, 60), "it goes on without its launcher"
        os.close(pidfd)
    JobFiles.read((tmp_path / "job").read_text()).remove()
    assert "the launcher of this job ended without notice" in (tmp_path / "logs" / "data_server.log").read_text()
