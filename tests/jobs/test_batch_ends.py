"""Batches at the ends of things: of a loop, of the data, of a server, of the room for messages."""

import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from watching import await_file

from platoon_base.data import BatchReader, BatchServer, load_ahead
from platoon_base.errors import CollectiveTimeoutError, WorkerLostError
from platoon_base.job.files import JobFiles
from platoon_base.system.process import readable

pytestmark = pytest.mark.base


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
