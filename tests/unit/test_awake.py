"""The clock for deadlines, in a process that is really stopped; whole jobs are in jobs/test_suspended.py."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from platoon_base.system import process as module
from platoon_base.system.process import awake

pytestmark = pytest.mark.base

POLLS = """
import os, signal, time
from platoon_base.system import process as module
from platoon_base.centers.stripes import wait_until
from platoon_base.links.peer import Peer
module.MAX_GAP_S = 0.5
peer = Peer(bytes(16), bytes(16))
began, real = module.awake(), time.monotonic()
stopped = []


def over():
    if not stopped:
        stopped.append(os.kill(os.getpid(), signal.SIGSTOP))
    return time.monotonic() > real + 3


in_time = wait_until(over, 2)  # of which the process is stopped for most
print(in_time, module.awake() - began < 2, peer.silent_s(module.awake()) < 2)
"""


def test_the_time_in_which_a_process_is_stopped_does_not_count():
    process = subprocess.Popen([sys.executable, "-c", POLLS], stdout=subprocess.PIPE, text=True)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    time.sleep(3)
    os.kill(process.pid, signal.SIGCONT)
    assert process.communicate(timeout=200)[0] == "True True True\n"


def test_each_of_several_stops_is_left_out():
    spec = importlib.util.find_spec(module.__name__)
    another = importlib.util.module_from_spec(spec)  # with a clock of its own
    spec.loader.exec_module(another)
    begin = time.monotonic()
    moments = iter([begin + seconds for seconds in (0, 1, 11, 12, 42, 43)])
    another.time = SimpleNamespace(monotonic=lambda: next(moments))
    began = another.awake()
    assert [another.awake() - began for _ in range(5)] == pytest.approx([1, 1, 2, 2, 3])


def test_the_time_in_which_it_runs_counts(monkeypatch):
    monkeypatch.setattr(module, "MAX_GAP_S", 60.0)
    began, real = awake(), time.monotonic()
    while time.monotonic() < real + 0.05:
        pass
    assert 0.05 <= awake() - began <= time.monotonic() - real + 0.01
