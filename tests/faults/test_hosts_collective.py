"""Collectives over several hosts in real jobs: what they give, and what happens when a rank of another host fails.

The hosts are pretended (helpers/pretended_hosts.py): on one machine, with one controller. Everything else is real.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.base, pytest.mark.slow]

PRETENDED = (Path(__file__).parents[1] / "helpers" / "pretended_hosts.py").read_text()


@pytest.fixture
def run_over(run_job):
    """Run a script as one worker of each rank of some hosts, such as "2+1"; it finds the worker and its rank."""

    def run(workers, text, keys="", backend="links", **options):
        environment = {"PRETENDED": workers, "PRETENDED_BACKEND": backend, **({"PRETENDED_KEYS": keys} if keys else {})}
        begin = (
            "import signal\nimport time\nimport numpy as np\nfrom platoon_base import connect\n"
            "worker = connect()\nrank, size = worker.global_rank, worker.global_size\n"
        )
        return run_job(PRETENDED + begin + text, sum(map(int, workers.split("+"))), environment=environment, **options)

    return run


@pytest.mark.parametrize("keys", ["5c" * 32, ","], ids=["encrypted", "plain"])
@pytest.mark.parametrize("workers", ["2+2", "1+2", "1+1+1"])
def test_all_calls_of_a_worker_are_those_of_all_hosts(run_over, workers, keys):
    run_over(
        workers,
        """
for n in (3, 20_000, 300_001):
    x = np.arange(n, dtype=np.float32) % 100 + rank
    for op, expected in (("sum", x * size + sum(range(size)) - rank * size), ("max", x - rank + size - 1)):
        np.testing.assert_array_equal(worker.all_reduce(x, op), expected)
    sent = [x.copy(), np.full(3, rank)]
    worker.broadcast(sent, root=size - 1)
    np.testing.assert_array_equal(sent[0], x - rank + size - 1)
    np.testing.assert_array_equal(sent[1], [size - 1] * 3)
    worker.barrier()
worker.close()
""",
        keys=keys,
    ).require_success()


def test_tensors_pass_through_the_host(run_over):
    pytest.importorskip("torch")
    run_over(
        "2+1",
        """
import torch
x = torch.full((1000,), float(rank))
assert (worker.all_reduce(x) == sum(range(size))).all()
worker.close()
""",
    ).require_success()


ENDS = """
worker.all_reduce(np.ones(10, np.float32))
began = time.monotonic()
if rank == {victim}:
    {fault}
try:
    for _ in range(3):
        worker.all_reduce(np.ones({n}, np.float32))
except Exception as exc:
    print("ENDED", type(exc).__name__, exc, round(time.monotonic() - began, 1), flush=True)
else:
    print("WENT ON", flush=True)
worker.close()
"""
KILLS = "import os; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("n", [10, 2_000_000])
@pytest.mark.parametrize(("workers", "victim"), [("2+2", 3), ("2+2", 0), ("1+2", 2), ("1+1+1", 1)])
def test_a_killed_rank_ends_the_calls_of_all_hosts_and_is_named(run_over, workers, victim, n):
    outcome = run_over(workers, ENDS.format(victim=victim, n=n, fault=KILLS))
    for rank, log in enumerate(outcome.logs):
        if rank != victim:
            (line,) = re.findall("ENDED.*", log)
            assert line.startswith("ENDED WorkerLostError")
            assert re.search(rf"rank {victim} (is lost|has left)", line), line
            assert float(line.split()[-1]) < 10


@pytest.mark.parametrize(("workers", "victim"), [("2+2", 3), ("1+2", 0)])
def test_a_refused_call_ends_those_of_all_hosts(run_over, workers, victim):
    outcome = run_over(workers, ENDS.format(victim=victim, n=5, fault="worker.all_reduce(np.ones(3, complex))"))
    for rank, log in enumerate(outcome.logs):
        if rank != victim:
            # Perhaps in the call before, of which a rank of its host may not have the result yet; or it sees that the
            # victim has gone before it gets the reason from the victim's host.
            said = rf"rank {victim} (refused its collective call 2|is lost|has left)"
            assert re.search(rf"(ConfigurationError|WorkerLostError).*{said}", log), log


@pytest.mark.parametrize(("workers", "victim"), [("2+2", 3), ("1+2", 0), ("1+2", 2)])
def test_calls_that_differ_between_hosts_end_on_all_of_them(run_over, workers, victim):
    outcome = run_over(workers, ENDS.format(victim=victim, n=5, fault="worker.all_reduce(np.ones(4, np.float32))"))
    differ = (
        rf"the ranks differ in collective call 2: .*rank {victim} called all_reduce\(float32 of shape \(4,\), 'sum'\)"
    )
    for log in outcome.logs:
        # A rank of another host may see that the victim has gone before it gets the reason from the victim's host.
        assert re.search(f"{differ}|rank {victim} (is lost|has left)", log), log
    assert re.search(differ, outcome.logs[victim])


@pytest.mark.parametrize("keys", ["5c" * 32, ","], ids=["encrypted", "plain"])
def test_a_rank_that_is_late_for_small_calls_harms_no_link(run_over, keys):
    """The others report whom they wait for, on links that small calls do not use; a large call reads it later."""
    text = """
for late_s in np.linspace(0.09, 0.2, 12):
    if rank == 0:
        time.sleep(late_s)
    assert (worker.all_reduce(np.full(10, rank, np.float32)) == sum(range(size))).all()
    assert (worker.all_reduce(np.full(200_000, rank, np.float32)) == sum(range(size))).all()
worker.close()
"""
    run_over("2+2", text, keys=keys).require_success()


def test_who_is_stopped_for_a_while_is_waited_for(run_over):
    fault = "import subprocess, os; stop_for_a_second = 'kill -STOP $0; sleep 1; kill -CONT $0'; "
    fault += "subprocess.Popen(['sh', '-c', stop_for_a_second, str(os.getpid())])"
    outcome = run_over("2+2", ENDS.format(victim=3, n=3_000_000, fault=fault)).require_success()
    assert all("WENT ON" in log for log in outcome.logs)


def test_another_key_on_one_host_is_named_on_all(run_over):
    outcome = run_over("2+2", ENDS.format(victim=-1, n=5, fault="pass"), keys=f"{'5c' * 32},{'5d' * 32}")
    for log in outcome.logs:
        assert "PlatoonError" in log
        assert re.search("(has another key|no link to the ranks)", log), log


def test_a_missing_package_on_one_host_is_named_on_all(run_over):
    text = """
import sys
if rank == 2:
    sys.modules["cryptography"] = None
try:
    worker.all_reduce(np.ones(3))
except Exception as exc:
    print("ENDED", type(exc).__name__, exc, flush=True)
worker.close()
"""
    for rank, log in enumerate(run_over("2+1", text).logs):
        assert re.search(r'ENDED (BackendUnavailable|Platoon)Error .*pip install "platoon-plugins\[hosts\]"', log), log
        assert rank == 2 or "rank 2 on host 1 (h1)" in log


@pytest.mark.parametrize(("backend", "package"), [("gloo", "torch"), ("mpi", "mpi4py")])
def test_a_library_that_is_missing_on_one_host_is_named_on_all(run_over, backend, package):
    text = f"""
import sys
if rank >= 1:
    sys.modules["{package}"] = None
else:  # which may be missing here too
    from platoon_base.collectives import hosts_libraries
    class IsThere:
        port = 0
        def __init__(self, *about):
            pass
        def close(self, failed):
            pass
    hosts_libraries.LIBRARIES["{backend}"] = IsThere
try:
    worker.all_reduce(np.ones(3))
except Exception as exc:
    print("ENDED", type(exc).__name__, exc, flush=True)
worker.close()
"""
    for rank, log in enumerate(run_over("1+1", text, ",", backend).logs):
        said = rf"ENDED (BackendUnavailable|Platoon)Error .*--hosts-backend {backend} needs {package}"
        assert re.search(said, log), log
        assert rank == 1 or "rank 1 on host 1 (h1)" in log


def test_strangers_at_the_listening_ports_of_a_job(run_over):
    """They send what they like to the ports of this job's links, from the first moment until the links are open."""
    text = """
import socket
import sys
import threading
from pathlib import Path
from platoon_base.links import handshake

FOLDER = Path(sys.argv[1])
first = handshake.Listener.__init__
stop = threading.Event()
sent = []

def listen(listener, host):
    first(listener, host)
    (FOLDER / f"port-{listener.address.port}").touch()
    disturbing = threading.Thread(target=disturb, daemon=True)
    disturbing.start()
    while len(sent) < 20 and disturbing.is_alive():
        time.sleep(0.001)

def disturb():
    while not stop.is_set():
        for path in FOLDER.glob("port-*"):
            try:
                with socket.create_connection(("127.0.0.1", int(path.name[5:])), 0.2) as sock:
                    sock.sendall((b"PLTNLNK1" if len(sent) % 2 else b"GET / HTT") + bytes(500))
                sent.append(path)
            except OSError:
                pass

handshake.Listener.__init__ = listen
for _ in range(20):
    assert (worker.all_reduce(np.full(100_000, rank, np.float32)) == sum(range(size))).all()
stop.set()
assert rank == 1 or len(sent) >= 20
worker.close()
"""
    run_over("2+1", text).require_success()
