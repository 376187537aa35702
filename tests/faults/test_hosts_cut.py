"""A cut of the network between two hosts, which are network namespaces: calls wait, and go on when it ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.base, pytest.mark.slow]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def hosts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import namespaces

    problem = namespaces.problem()
    if problem:
        pytest.skip(problem)
    with namespaces.Hosts(2) as made:
        yield made


@pytest.mark.parametrize(
    ("form", "size", "cut_s", "rate"),
    [
        ("platoon", 4 << 10, 1.0, None),
        ("platoon", 4 << 20, 1.0, None),
        ("platoon-plain", 4 << 10, 1.0, None),
        ("platoon-plain", 4 << 20, 1.0, None),
        ("platoon", 16 << 20, 5.0, "1gbit"),
    ],
)
def test_a_call_goes_on_after_a_cut(hosts, form, size, cut_s, rate, tmp_path):
    """The ranks check what they get; see benchmarks/hosts_all_reduce.py."""
    import hosts_all_reduce

    if rate:
        hosts.limit(rate)

    with contextlib.closing(hosts_all_reduce.Method(form, hosts, tmp_path, sys.executable)) as method:
        method.measure(size, 1, 3, check=True)
        mended = []

        def mend():
            hosts.cut(1, whole=True)
            mended.append(time.monotonic())

        began = time.monotonic()
        hosts.cut(1)
        timer = threading.Timer(cut_s, mend)
        timer.start()
        try:
            method.measure(size, 1, 1, check=True)
            ended = time.monotonic()
        finally:
            timer.join()
        assert ended - began > cut_s
        assert ended - mended[0] < 5  # 0.6 s is usual; the address of the other host may have to be asked for anew
        method.measure(size, 1, 3, check=True)


UNREACHABLE = """
    import socket, sys, time

    from platoon_base.links.stream import Stream

    if sys.argv[1] == "listen":
        with socket.create_server((sys.argv[2], 29500)) as server:
            print("ready", flush=True)
            sock, _ = server.accept()
            sys.stdin.read()
    else:
        sock = socket.create_connection((sys.argv[2], 29500))
        stream = Stream(sock, None, None)
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.monotonic()
        stream.post(1, 0, b"x")
        while stream.unanswered_s() < 1.0 and time.monotonic() < began + float(sys.argv[3]):
            stream.push()
            time.sleep(0.05)
        print(stream.unanswered_s() >= 1.0, flush=True)
"""


@pytest.mark.parametrize(("cut", "seconds"), [(True, "60"), (False, "2")])
def test_a_host_that_acknowledges_nothing_is_known_while_its_process_is_busy(hosts, cut, seconds):
    """The process at the other end never reads."""
    first, second = hosts.all
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    script = [sys.executable, "-c", textwrap.dedent(UNREACHABLE)]
    with subprocess.Popen([*first.enter(), *script, "listen", first.address], **pipes) as listening:
        assert listening.stdout.readline() == "ready\n"
        with subprocess.Popen([*second.enter(), *script, "call", first.address, seconds], **pipes) as calling:
            assert calling.stdout.readline() == "ready\n"
            if cut:
                hosts.cut(1)
            assert calling.communicate("go\n")[0] == f"{cut}\n"
        listening.communicate("")
