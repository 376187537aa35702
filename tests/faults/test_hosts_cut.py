"""A cut of the network between two hosts, which are network namespaces: calls wait, and go on when it ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
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
    """The ranks check what they get; see benchmarks/scripts/hosts_all_reduce_rank.py."""
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


def test_the_benchmark_measures(hosts, tmp_path):
    command = [sys.executable, BENCHMARKS / "hosts_all_reduce.py", "--quick", "--methods", "platoon", "tcp"]
    command += ["--links", "unlimited", "--sizes", "4096"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert "unlimited" in done.stdout
    assert "4 KB" in done.stdout
